"""Policy `justitia-guarded`: justitia, but applications may overtake others within their slack.

Imported only when the policy is selected. Outside this folder and the lab, only the table of
policies names this folder.
"""
