"""The program of the process that exports spans by OTLP.

Encoding a span takes tens of microseconds of Python, as much as a short invocation. So the node
only sends records of invocations to this process, in batches; the process makes spans of them and
sends them to the collector by OpenTelemetry's own exporter. It has a low priority: if the machine
has no time left, spans are dropped (and counted) and invocations are not delayed.

The node sends `Setup`, then one `Batch` after the other; each is answered by `ExportResult`, so the
node knows what was lost. OpenTelemetry's `BatchSpanProcessor` would drop spans without counting
them.
The end of the connection is the order to leave.
"""
