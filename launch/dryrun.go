// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/program"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

// Plan describes what a job would start.
type Plan struct {
	RunID   string       `json:"run_id"`
	Store   string       `json:"store"`
	Workers []PlanWorker `json:"workers"`
}

// PlanWorker is a worker of a [Plan].
type PlanWorker struct {
	Rank    cohort.Rank `json:"rank"`
	Command []string    `json:"command"`
	Set     []string    `json:"set"`
	// Dir is the folder that it runs in, "" for that of the launcher.
	Dir string `json:"dir,omitempty"`
	// CPUs are the processors that it is bound to.
	CPUs []int `json:"cpus,omitempty"`
}

// DryRun returns what [Run] would start, without starting anything.
func DryRun(c Config) (*Plan, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	p := place{nodes: 1, world: c.Workers, roles: c.rolesAmong(0, 1), addr: c.MasterAddr, port: c.MasterPort, ours: !c.NoShim}
	setDefault(&p.addr, "127.0.0.1")
	plan := &Plan{RunID: c.RunID, Store: "in the launcher, on " + p.addr}
	if !p.ours {
		plan.Store = "in rank 0, on " + p.addr
	}
	if c.MaxNodes > 1 {
		host, _, _ := net.SplitHostPort(c.Endpoint)
		if c.Host == HostAlways && c.LocalAddr != "" {
			host = c.LocalAddr
		}
		p = c.examplePlace(host)
		plan.Store = fmt.Sprintf("in the launcher that hosts the rendezvous at %s, for node %d of %d if all have as many workers", c.Endpoint, p.node, p.nodes)
	}
	if p.port == 0 {
		plan.Store += ", on a free port"
	}
	dir := &rundir.Dir{Path: "RUN_DIR"}
	if !c.NoShim {
		dir.Shim = "RUN_DIR/python"
	}
	for local := range c.Workers {
		set, err := c.environment(p, local, dir)
		if err != nil {
			return nil, err
		}
		if i := slices.Index(set, "MASTER_PORT=0"); i >= 0 {
			set[i] = "MASTER_PORT=FREE_PORT"
		}
		role, _ := c.roleOf(local)
		plan.Workers = append(plan.Workers, PlanWorker{Rank: p.rank(local), Command: c.command(local), Set: set, Dir: role.Dir, CPUs: c.cpus[local]})
	}
	return plan, nil
}

// examplePlace is where this node would stand among others with as many workers.
func (c Config) examplePlace(host string) place {
	node := max(0, c.nodeRank())
	return place{
		node: node, nodes: c.MaxNodes, base: node * c.Workers, world: c.MaxNodes * c.Workers, roles: c.rolesAmong(node, c.MaxNodes),
		addr: host, port: c.StorePort, ours: true,
	}
}

// String returns the plan for people: the command of each rank, and the variables that all ranks share once.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %s, store %s\n", p.RunID, p.Store)
	shared := map[string]int{}
	for _, w := range p.Workers {
		for _, v := range w.Set {
			shared[v]++
		}
	}
	b.WriteString("every worker:\n")
	for _, w := range p.Workers[:min(1, len(p.Workers))] {
		for _, v := range w.Set {
			if shared[v] == len(p.Workers) {
				b.WriteString("  " + v + "\n")
			}
		}
	}
	for _, w := range p.Workers {
		fmt.Fprintf(&b, "rank %d: %s\n", w.Rank, program.Quoted(w.Command))
		if w.Dir != "" {
			b.WriteString("  in the folder " + w.Dir + "\n")
		}
		if len(w.CPUs) > 0 {
			b.WriteString("  on the processors " + ranklist.Short(w.CPUs) + "\n")
		}
		for _, v := range w.Set {
			if shared[v] < len(p.Workers) {
				b.WriteString("  " + v + "\n")
			}
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
