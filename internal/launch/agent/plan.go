// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"slices"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
)

// PlannedWorker is how a worker would be started.
type PlannedWorker struct {
	Rank    cohort.Rank
	Command []string
	Set     []string
	Dir     string
	CPUs    []int
}

// Plan returns how the workers of this node would be started, and where the store would be.
func (c Config) Plan() (workers []PlannedWorker, store string, err error) {
	p, store := c.plannedPlace()
	if p.port == 0 {
		store += ", on a free port"
	}
	dir := &rundir.Dir{Path: "RUN_DIR"}
	if !c.NoShim {
		dir.Shim = "RUN_DIR/python"
	}
	for local := range c.Workers {
		set, err := c.environment(p, local, dir)
		if err != nil {
			return nil, "", err
		}
		if i := slices.Index(set, "MASTER_PORT=0"); i >= 0 {
			set[i] = "MASTER_PORT=FREE_PORT"
		}
		role, _ := c.roleOf(local)
		workers = append(workers, PlannedWorker{
			Rank: p.rank(local), Command: c.command(local), Set: set, Dir: role.Dir,
			CPUs: c.CPUs[local],
		})
	}
	return workers, store, nil
}

// plannedPlace is where this node would stand, among others with as many workers if there are any.
func (c Config) plannedPlace() (p place, store string) {
	if c.MaxNodes > 1 {
		p = c.examplePlace()
		return p, fmt.Sprintf("in the launcher that hosts the rendezvous at %s, for node %d of %d if all have as many workers",
			c.Endpoint, p.node, p.nodes)
	}
	p = c.singlePlace()
	p.port, p.ours = c.MasterPort, !c.NoShim
	if p.ours {
		return p, "in the launcher, on " + p.addr
	}
	return p, "in rank 0, on " + p.addr
}

// singlePlace is the place of a job's only node.
func (c Config) singlePlace() place {
	return place{nodes: 1, world: c.Workers, roles: c.rolesAmong(0, 1), addr: c.storeHost()}
}

// storeHost is where the store of a job on one node listens: on the loopback interface, which the workers alone need.
func (c Config) storeHost() string {
	if c.MasterAddr == "" {
		return "127.0.0.1"
	}
	return c.MasterAddr
}

// examplePlace is where this node would stand among others with as many workers.
func (c Config) examplePlace() place {
	host, _, _ := net.SplitHostPort(c.Endpoint)
	if c.Host != nil && *c.Host && c.LocalAddr != "" {
		host = c.LocalAddr
	}
	node := max(0, c.NodeRank)
	return place{
		node: node, nodes: c.MaxNodes, base: node * c.Workers, world: c.MaxNodes * c.Workers, roles: c.rolesAmong(node, c.MaxNodes),
		addr: host, port: c.StorePort, ours: true,
	}
}
