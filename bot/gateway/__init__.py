"""The gateway: agents' requests to models pass through here, so that no key is on a machine and every token is counted.

`requests` says what may be asked, `usage` what an answer took, both pure; `proxy` passes requests on; `doors` has one
for each job, with the way there. The rest of the service knows `runner.gateway` alone.
"""
