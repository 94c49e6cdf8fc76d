// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/sys/ctxdial"
)

// checkNodes checks what concerns several nodes.
func (c Config) checkNodes() error {
	if c.MinNodes < 1 || c.MaxNodes < c.MinNodes || c.MaxNodes > nodecoord.MaxNodes {
		return refuse("%d to %d nodes: the first must be at least 1 and at most the second", c.MinNodes, c.MaxNodes)
	}
	if c.MaxNodes == 1 {
		return nil
	}
	if c.Endpoint == "" {
		return refuse("a job on several nodes needs an endpoint where they meet: --rdzv-endpoint HOST:PORT")
	}
	switch _, port, err := net.SplitHostPort(c.Endpoint); {
	case err != nil:
		return refuse("the endpoint %q is not HOST:PORT", c.Endpoint)
	case port == "0":
		return refuse("the endpoint %s has no port: the nodes of a job need one that all of them know", c.Endpoint)
	}
	if n := c.nodeRank(); c.NodeRank != nil && (n < 0 || n >= c.MaxNodes) {
		return refuse("node rank %d: it must be below the number of nodes, %d", n, c.MaxNodes)
	}
	if c.NoShim {
		return refuse("without the shim rank 0 would have to host the store, which works on one node only")
	}
	return nil
}

// nodeRank is the number that this node asks for, -1 for any.
func (c Config) nodeRank() int {
	if c.NodeRank == nil {
		return -1
	}
	return *c.NodeRank
}

func (c Config) rules() nodecoord.Rules {
	return nodecoord.Rules{MinNodes: c.MinNodes, MaxNodes: c.MaxNodes, MaxRestarts: c.MaxRestarts}
}

// forHost is what the host of the rendezvous needs to know.
func (j *job) forHost() nodecoord.Config {
	c := j.cfg
	return nodecoord.Config{
		RunID: c.RunID, Rules: c.rules(), StoreAddr: c.LocalAddr, StorePort: c.StorePort,
		JoinTimeout: c.JoinTimeout, LastCall: c.LastCall, Silence: c.Silence,
		OnUnidentified: func(addr string) {
			j.screen.say("somebody at %s has connected to the rendezvous and is not a cohort launcher: torchrun and cohort run cannot launch parts of one job", addr)
		},
	}
}

// tellEnd ends the job on all nodes if this launcher hosts it and was ended by the user.
func (j *job) tellEnd(h *nodecoord.Host) {
	if how := j.endedBy(); h != nil && how != "" {
		h.End(cohort.New(op, cohort.Aborted, "the launcher that hosts the rendezvous "+how))
	}
}

// statuses are the nodes of a roster.
func statuses(roster []nodecoord.Node) []NodeStatus {
	all := make([]NodeStatus, len(roster))
	for i, n := range roster {
		all[i] = NodeStatus(n)
	}
	return all
}

// hosts reports whether this launcher should host the rendezvous: the endpoint is an address of this machine.
func (c Config) hosts(ctx context.Context) bool {
	if c.Host != HostAuto {
		return c.Host == HostAlways
	}
	name, _, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return ctxdial.IsLocal(ctx, name)
}
