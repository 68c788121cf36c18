"""Policy `justitia-guarded`: justitia, with applications that overtake others within their slack.

Imported only when the policy is selected. Outside this folder and the lab only the table of
policies names it.
"""
