"""`justitia-guarded`: justitia, where some applications pass others inside their slack.

Imported only when the policy is chosen. Nothing outside this folder and the lab names it but the
table of policies.
"""
