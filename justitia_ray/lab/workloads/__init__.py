"""The papers' applications as short agents on the client.

    SC      self_consistency     one question, several attempts, a vote
    KBQAV   factool_kbqa         claims of a response, each searched for and verified
    MRS     map_reduce_summary   summaries of chunks, collapsed into one
    PE      plan_execute         a plan of subtasks that need each other, a response
    CC      factool_code         code run against solutions on calls chosen for it
    EV      factool_math         calculations, each checked by an expression
    FV      react_fever          thoughts and searches in turn, a verdict on a claim
    ALFWI   react_household      thoughts and commands in turn, in a household of text
    DM      merge_documents      merges, scored, aggregated, improved
    CG      code_feedback        code run and written again

Loads are planned in `sim.suites.load_plan` and `sim.suites.live_loads`; `play` plays them against a
service. On a real model the answers decide what an agent does.
"""
