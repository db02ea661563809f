"""Checks the conformance of any server of the OpenAI, Anthropic and Ollama APIs, and
measures it under load: `dragoman check URL` and `dragoman bench URL`.

    areas     the checks: each sends requests to a server, and verifies the responses
    rules     the wire formats of the APIs; used by the checks, and by tests of servers
    runner    runs checks one after the other, and returns a report
    session   the requests of one check, and their record as evidence
    load      workloads, the load driver, and logs of measured requests
    plots     plots of measurements
    commands  the command line

The package is independent of the server that it checks: it sends requests with
`dragoman_http`.
"""
