// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/agent"
)

// Status describes a job at one moment, as one of its launchers sees it.
type Status struct {
	Program string
	Started time.Time
	// Attempt counts from 0. MaxRestarts bounds those after a failure.
	Attempt, MaxRestarts int
	// World is the number of ranks on all nodes; 0 while nodes gather.
	World int
	// Node is this node's number among Nodes.
	Node  int
	Nodes []NodeStatus
	// Gathering says that the job waits for nodes; nil: it does not.
	Gathering *Gathering
	// Ranks are the workers of this node.
	Ranks []WorkerStatus
	// Waits are ranks that have waited in the job's store for a while.
	Waits []StoreWait
	// Others and OtherWaits are the same of other nodes, as far as those have sent theirs: at most the first 64, each second.
	Others     []WorkerStatus
	OtherWaits []StoreWait
}

// NodeStatus is a node that takes part.
type NodeStatus struct {
	Host    string
	Base    cohort.Rank // its first rank
	Workers int         // how many it has
}

// Gathering is the wait for nodes.
type Gathering struct {
	Here, Min, Max int
	// Missing are the numbers of those that have not joined, if the others were given numbers.
	Missing []int
	Since   time.Time
}

// WorkerStatus describes a worker.
type WorkerStatus struct {
	Rank  cohort.Rank
	Phase WorkerPhase
	Since time.Time
	// Words say how it ended.
	Words string
	// Line is what it has printed of a line that is not finished: a progress bar, or a prompt.
	Line string
	// Printed is when it last printed something; zero: never.
	Printed time.Time
	// Section is the part of its program that it says it is in, and Entered since when; "" if it says nothing. See package
	// observe/progress.
	Section string
	Entered time.Time
	// Steps is how many steps it says it has done.
	Steps uint64
}

// WorkerPhase is what a worker does.
type WorkerPhase int

// The states of a worker.
const (
	WorkerStarting = WorkerPhase(agent.WorkerStarting)
	WorkerRunning  = WorkerPhase(agent.WorkerRunning)
	WorkerStopping = WorkerPhase(agent.WorkerStopping)
	WorkerDone     = WorkerPhase(agent.WorkerDone)
	WorkerFailed   = WorkerPhase(agent.WorkerFailed)
)

// String says what the worker does.
func (p WorkerPhase) String() string {
	return named(p, "phase", map[WorkerPhase]string{
		WorkerStarting: "starting", WorkerRunning: "running", WorkerStopping: "stopping", WorkerDone: "done", WorkerFailed: "failed",
	})
}

// statusOf returns what users see of a status.
func statusOf(a agent.Status) Status {
	s := Status{
		Program: a.Program, Started: a.Started, Attempt: a.Attempt, MaxRestarts: a.MaxRestarts, World: a.World, Node: a.Node,
		Gathering: (*Gathering)(a.Gathering), Ranks: workersOf(a.Ranks), Waits: waitsOf(a.Waits), Others: workersOf(a.Others),
		OtherWaits: waitsOf(a.OtherWaits),
	}
	for _, n := range a.Nodes {
		s.Nodes = append(s.Nodes, NodeStatus(n))
	}
	return s
}

// workersOf returns what users see of workers.
func workersOf(workers []agent.WorkerStatus) []WorkerStatus {
	var all []WorkerStatus
	for _, w := range workers {
		all = append(all, WorkerStatus{
			Rank: w.Rank, Phase: WorkerPhase(w.Phase), Since: w.Since, Words: w.Words, Line: w.Line,
			Printed: w.Printed, Section: w.Section, Entered: w.Entered, Steps: w.Steps,
		})
	}
	return all
}
