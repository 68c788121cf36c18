"""The console's page in a browser: on a stand-in for the service, and on a live one."""
