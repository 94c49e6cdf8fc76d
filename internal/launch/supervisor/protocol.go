// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package supervisor starts the workers of a launcher from a separate process, so that none of them outlives the launcher.
//
// The supervisor is a child of the launcher and the parent of all workers. On Linux it is also the subreaper of the workers'
// descendants: a process whose parent dies becomes a child of the supervisor, not of init. When the launcher dies, even by
// SIGKILL, the supervisor sees its socket close, kills all its descendants, removes the folders that it was given, and
// exits. When the supervisor is killed, the kernel kills the workers, and the launcher kills the processes that they had
// started: those of their sessions and those that have inherited the mark in their environment. The launcher may be part
// of a program with other children, which are left alone.
//
// The parent-death signal alone is not enough: it is tied to the thread that forks, and grandchildren do not inherit it.
//
// [Main] is the supervisor's side, [Client] the launcher's. They talk over a socket pair: requests in frames that carry
// descriptors, replies as JSON.
package supervisor

import "time"

// Command is a program to start.
type Command struct {
	Args []string
	// Set has variables ("NAME=value") that are added to the launcher's own environment.
	Set []string
	Dir string
	// Mark is one of Set that no process has which the supervisor has not started.
	Mark string
	// CPUs are the processors that it may run on; none: those of the launcher.
	CPUs []int
}

// Event is what the supervisor reports. Exactly one of its fields is set.
type Event struct {
	Started *startedWorker `json:"started,omitempty"`
	Refused *refused       `json:"refused,omitempty"`
	Exited  *Exited        `json:"exited,omitempty"`
	Swept   *swept         `json:"swept,omitempty"`
}

type (
	// startedWorker is a worker that runs.
	startedWorker struct {
		ID    int           `json:"id"`
		PID   int           `json:"pid"`
		After time.Duration `json:"after"` // since the supervisor began
		At    time.Time     `json:"-"`     // the same by the clock of the launcher, which its [Client] fills in
	}
	// refused is a program that could not be started.
	refused struct {
		ID    int    `json:"id"`
		Error string `json:"error"`
	}
	// Exited is a worker that has ended.
	Exited struct {
		ID    int           `json:"id"`
		PID   int           `json:"pid"`
		After time.Duration `json:"after"`
		At    time.Time     `json:"-"`
		// Code is the exit status, or -N for signal N.
		Code int `json:"code"`
		// CPU and RSS are what it has used: processor time and the largest resident memory, in bytes.
		CPU time.Duration `json:"cpu"`
		RSS int64         `json:"rss"`
	}
	// swept says that a sweep is done.
	swept struct {
		// Killed is the number of processes that were left over, Left that of those that did not end.
		Killed int `json:"killed"`
		Left   int `json:"left"`
	}
)

// request is what the launcher asks for. Exactly one of its fields is set.
type request struct {
	Start *startRequest  `json:"start,omitempty"`
	Send  *signalRequest `json:"send,omitempty"`
	Sweep *sweepRequest  `json:"sweep,omitempty"`
	// Remove names folders to remove at the end.
	Remove *removeRequest `json:"remove,omitempty"`
	// Hold names the file that the supervisor locks for as long as it lives.
	Hold *holdRequest `json:"hold,omitempty"`
}

// startRequest has the texts of a [Command] as bytes: names of files and variables need not be text, and JSON would replace what is
// not UTF-8.
type startRequest struct {
	ID   int      `json:"id"`
	Args [][]byte `json:"args"`
	Set  [][]byte `json:"set,omitempty"`
	Dir  []byte   `json:"dir,omitempty"`
	CPUs []int    `json:"cpus,omitempty"`
}

func newStartRequest(id int, c Command) *startRequest {
	return &startRequest{ID: id, Args: convert[[]byte](c.Args), Set: convert[[]byte](c.Set), Dir: []byte(c.Dir), CPUs: c.CPUs}
}

func (r *startRequest) command() Command {
	return Command{Args: convert[string](r.Args), Set: convert[string](r.Set), Dir: string(r.Dir), CPUs: r.CPUs}
}

func convert[To, From string | []byte](words []From) []To {
	all := make([]To, len(words))
	for i, w := range words {
		all[i] = To(w)
	}
	return all
}

type signalRequest struct {
	IDs    []int `json:"ids"`
	Signal int   `json:"signal"`
}

type removeRequest struct {
	Folders [][]byte `json:"folders"`
}

type holdRequest struct {
	File []byte `json:"file"`
}

type sweepRequest struct {
	Gentle bool `json:"gentle"`
}

// maxFrame bounds a request: the kernel's own bound for arguments is 6 MiB at most.
const maxFrame = 16 << 20

const (
	// gentleTime is what leftovers of a job that succeeded have between SIGTERM and SIGKILL.
	gentleTime = 2 * time.Second
	// sweepTime bounds the wait for leftovers to end after SIGKILL: on a busy machine that takes seconds.
	sweepTime = 10 * time.Second
	// closeTime bounds the wait for the end of a supervisor, which sweeps first.
	closeTime = 3 * sweepTime
)
