// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"slices"

	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
)

// Graph is what a worker has recorded in a context, for tests.
type Graph struct {
	Sends, Recvs []int64                // by the ids of their messages
	Reach        [][]int                // per send, the places in Recvs that its gradients reach
	Edges        []int                  // per send, how many values it carried
	Known        []string               // workers that messages went to or came from
	Leaves       [][]*autograd.Variable // per send, where its gradients go; nil for what is not a leaf
	RecvNodes    []*autograd.Node       // as Recvs
}

// Graph returns what is recorded.
func (c *Context) Graph() (g Graph) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	at := map[backwardcore.Node]int64{}
	for call, p := range c.calls {
		if call.From != e.self() || p.node.Function() == nil {
			continue
		}
		if _, isSend := p.node.Function().(*sent); isSend {
			g.Sends = append(g.Sends, number(call))
		}
	}
	for call, p := range c.calls {
		if r, ok := p.node.Function().(*received); ok {
			g.Recvs = append(g.Recvs, number(call))
			at[r.at] = number(call)
		}
	}
	slices.Sort(g.Sends)
	slices.Sort(g.Recvs)
	for _, id := range g.Recvs {
		for call, p := range c.calls {
			if _, ok := p.node.Function().(*received); ok && number(call) == id {
				g.RecvNodes = append(g.RecvNodes, p.node)
			}
		}
	}
	for _, id := range g.Sends {
		p := c.calls[callOf(int(e.self()), id)]
		var places []int
		for _, n := range p.next {
			places = append(places, slices.Index(g.Recvs, at[n]))
		}
		g.Reach = append(g.Reach, places)
		g.Edges = append(g.Edges, len(p.kind))
		var leaves []*autograd.Variable
		p.node.Inputs(func(n *autograd.Node) { leaves = append(leaves, n.Leaf()) })
		g.Leaves = append(g.Leaves, leaves)
	}
	for _, w := range e.mu.machine.Known(c.id) {
		if info, err := e.agent.Worker(int(w)); err == nil {
			g.Known = append(g.Known, info.Name)
		}
	}
	return g
}
