// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// Succeeded is what Gone says of a rank that has succeeded.
const Succeeded = "has exited with code 0"

// Rank is what was seen of a rank, by the source of the evidence. The sources are embedded, so that their fields stand
// side by side in JSON.
type Rank struct {
	Rank int
	Host string
	PID  int
	// Taken is when it was seen, by the clock of its host; zero: when the job was.
	Taken time.Time
	// Trouble says why something could not be read.
	Trouble string

	Environment
	Process
	Stacks
	Records
	Reported

	polls *Wait // what it asks the store for again and again
}

// Environment is what a rank was started with.
type Environment struct {
	// World and Store are the WORLD_SIZE and the address of the store; 0 and "" if they are not known.
	World int
	Store string
	// Member says that it is a member of a group whose members change while their processes go on, or a spare.
	Member bool
	// Gateway is where the rank finds the store on its own host, "" if it uses the store directly.
	Gateway string
}

// Process is what the kernel reports of a rank's process, and of those below it.
type Process struct {
	// Gone says how the rank ended, "" if it runs: "was killed by SIGKILL".
	Gone string
	// State is the scheduler's state of the process: R, S, D, T.
	State string
	// Frozen says that its cgroup is frozen.
	Frozen bool
	// Sleeps says that the main thread slept for most of the time between two readings: it may run for a moment, to look again.
	Sleeps bool
	// GPU says that it computes on a GPU, and that its main thread runs without leaving its line: so does one that waits for the GPU.
	GPU bool
	// Idle is how long the main thread has not run, and Wakes how long it is going to sleep; 0: not known.
	Idle, Wakes time.Duration
	// Object is what the main thread reads, writes or connects to: "10.0.0.5:443"; "" if it is not known.
	Object string
	// Tracer is the debugger that has stopped it, or nil.
	Tracer *Holder
	// Holder is the process that holds the file lock that the main thread waits for, or nil.
	Holder *Holder
	// Dials are the addresses that it tries to connect to and has had no answer from for some time.
	Dials []string
	// Listens are the addresses at which others reach it.
	Listens []string
	// Children are processes below it that run code of the program or other programs: data loader workers, for instance.
	Children []Child
	// PoolIdle says that it has processes of a multiprocessing.Pool, and that each process below it waits for a task of one.
	PoolIdle bool
	// LostChildren says that a child of it has exited and was not waited for.
	LostChildren bool
}

// Stacks is what the stacks of a rank show: of Python's threads, or of goroutines.
type Stacks struct {
	// Threads are all that were read, Main the main one; nil if it is neither Python nor Go, or could not be read.
	Threads []stacks.Thread
	Main    *stacks.Thread
	// Moved says that the main thread did something between two readings.
	Moved bool
	// Once says that it could be read only once, so that Moved is not known.
	Once bool
	// Loops says that it is in the function of the program that it was in at the first reading, and slept or asked a store there then.
	Loops bool
	// Line is the text of the line of the program that the main thread is in, with the rest of a call; "" if it is not known.
	Line string
	// Ending says that its program has ended and the process has not.
	Ending bool
}

// Records is what a rank itself has recorded or printed.
type Records struct {
	// Dump is its flight recorder, or nil.
	Dump *torchdump.Dump
	// Worker is what it says of itself as an RPC worker of Go, or nil.
	Worker *Worker
	// Raised is the exception that it has printed last, "" if it has printed something else since, or none.
	Raised string
}

// Reported is what a rank says of itself: internal/observe/progresspage.
type Reported struct {
	// Section is the part of its program that it is in, as it calls it, and SectionAge since when; "" if it says nothing.
	Section    string
	SectionAge time.Duration
	// Steps is how many steps it has done, and StepAge how long ago the last one; 0 if it says nothing.
	Steps   uint64
	StepAge time.Duration
}

// atWork reports whether a rank does something of its own.
func (r Rank) atWork() bool {
	return r.polls == nil && r.Moved || r.polls == nil && r.State == "R" && !r.Sleeps && !r.GPU
}

// Child is a process below a rank.
type Child struct {
	PID int
	// Command is the name of its program.
	Command string
	// Frames are the calls of its main thread, as far as they are its own: a child that was forked has those of its parent, too.
	Frames []stacks.Frame
	// Kernel is the function of the kernel that it sleeps in.
	Kernel string
	// Imports says that it runs the program's file anew, to import it.
	Imports bool
	// Stopped says that a signal or a debugger has stopped it.
	Stopped bool
}

// Wait is a client of the job's store that waits for a key.
type Wait struct {
	Key  string
	Rank int // -1: not known
	Age  time.Duration
	// Asks is how often a client has asked for it that does not wait, and Answer what it was told each time, if that is a number.
	Asks   uint64
	Answer string
}

// Stray is a process that runs the program of a job as a rank that the job lacks.
type Stray struct {
	Rank  int    `json:"rank"`
	PID   int    `json:"pid"`
	Store string `json:"store"`
}

// GPUError is an error of a GPU that the kernel has logged since the job was started.
type GPUError struct {
	Host string
	// Device is its PCI address, and Number that of the error: NVIDIA's Xid.
	Device string
	Number int
	// Words say what the error means; Fatal that the GPU, or what ran on it, does not go on.
	Words string
	Fatal bool
	// Rank is whose process it was, -1 if it was that of no rank, or is not known.
	Rank int
	Age  time.Duration
}

// Job is what was seen of a job.
type Job struct {
	// World is WORLD_SIZE; 0: not known. Local says that all ranks run on this host.
	World int
	Local bool
	Ranks []Rank
	Waits []Wait
	// NodeWaits says that Waits are those of one node's ranks: its gateway to the store has told them.
	NodeWaits bool
	// Polls are clients that ask the store for a key again and again, and have had the same answer each time.
	Polls []Wait
	// Store is the store's address, and StoreTrouble why it cannot be reached; "" if it can.
	Store, StoreTrouble string
	// OldKeys says that the store still has keys from an earlier attempt to run the job.
	OldKeys bool
	// Orphans are processes that are perhaps ranks of this job and use another store.
	Orphans []Stray
	// NCCL is what NCCL's own network says of its communicators, a line each.
	NCCL []string
	// Communicators are those of them whose ranks have started different collectives.
	Communicators []Communicator
	// GPUErrors are what the kernel has logged.
	GPUErrors []GPUError
	// Notes say what is not certain about the job, a line each.
	Notes []string
	// Taken is when it was seen; zero: not known.
	Taken time.Time
}
