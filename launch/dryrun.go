// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/program"
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
	a, err := c.forAgent()
	if err != nil {
		return nil, err
	}
	workers, store, err := a.Plan()
	if err != nil {
		return nil, err
	}
	plan := &Plan{RunID: a.RunID, Store: store}
	for _, w := range workers {
		plan.Workers = append(plan.Workers, PlanWorker(w))
	}
	return plan, nil
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
