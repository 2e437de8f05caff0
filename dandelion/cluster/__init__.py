"""A node as one of several: see "Cluster" in ARCHITECTURE.md, and ``docs/cluster.md``.

================  ============================================================================
file              what it has
================  ============================================================================
`settings`        what the operator gives
`membership`      pure: which nodes are alive
`placement`       pure: which node gets a call
`replication`     pure: the log of the catalogue's changes; `ballots`: its messages
`messages`        what nodes say to each other; `handshake`, `frames`: how
`regions`         memory that is held for another node; `exchange`: pulling it
`wire_sets`       sets to messages and back
`link`            calls to another node; `serving`: calls of another node; `control_end`: both
`instance_walk`   the walk of such a call
`executor`        engines of other nodes, to the scheduler
`catalog`         the catalogue; `blob_source`, `log_driver`, `log_file`: what it is made of
`questions`       questions between two nodes; `kept_messages`: those about
                  asynchronous invocations
`kept_copies`     pure: copies of asynchronous invocations, ballots of journals
`kept_keeper`     keeping them: `kept_store`, `kept_journals` (writing), `kept_takeover` (of lost
                  nodes), `kept_elsewhere` (asking other nodes)
`shares`          pure: what tenants use on other nodes
`doors`           opening and accepting connections
`departure`       leaving
`cluster`         all of it together; `node_side`: what it needs of the node; `status`: shown
`joining`         from settings; `discovery`, `ray_control`: finding other nodes by Ray
================  ============================================================================
"""

from dandelion.cluster.cluster import Cluster
from dandelion.cluster.settings import ClusterSettings, cluster_settings

__all__ = ["Cluster", "ClusterSettings", "cluster_settings"]
