// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/cgroup"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// askTime bounds each question to a store or a worker server.
const askTime = 2 * time.Second

// Examine looks at a job as [Glance] does, reads what the kernel has logged of GPUs, and asks NCCL and the flight
// recorders of its ranks. That takes some seconds the first time, and the ranks write into their logs that they were
// asked.
func Examine(ctx context.Context, j Job, apart time.Duration) verdict.Job {
	var nccl ncclEvidence
	var wg sync.WaitGroup
	wg.Go(func() { nccl = askNCCL(ctx, j) })
	seen := look(ctx, j, apart, true)
	wg.Wait()
	seen.NCCL, seen.Communicators = nccl.lines, nccl.communicators
	return seen
}

// Glance looks at a job twice, apart from each other, and returns what was seen. The job does not notice.
func Glance(ctx context.Context, j Job, apart time.Duration) verdict.Job {
	return look(ctx, j, apart, false)
}

// look takes two snapshots of a job, apart from each other, and asks meanwhile who can answer.
func look(ctx context.Context, j Job, apart time.Duration, ask bool) verdict.Job {
	seen := verdict.Job{World: j.World, Local: j.Local, Store: j.Store, Orphans: j.Orphans, Notes: j.Notes, Taken: time.Now()}
	seen.NodeWaits = j.Gateway != ""
	e := examination{job: j, said: make([]goRank, len(j.Ranks)), frozen: map[string]bool{}}
	e.host, _ = os.Hostname()
	e.before = e.snapshot(ctx)
	throttled := throttledAt("/", j.Ranks)
	wait := e.askMeanwhile(ctx, &seen, apart, ask)
	select {
	case <-ctx.Done():
	case <-time.After(apart):
	}
	e.after = e.snapshot(ctx)
	e.sockets = portowner.ReadSockets(e.after.pids)
	seen.Notes = append(slices.Clip(seen.Notes), limitsOf("/", j.Ranks).since(throttled)...)
	wait()
	seen.Waits, seen.Polls = e.store.byRank(e.sockets, e.owners())
	for i := range j.Ranks {
		seen.Ranks = append(seen.Ranks, e.rank(ctx, i))
	}
	e.lookAtStore(ctx, &seen)
	if ask && slices.ContainsFunc(e.after.pids, func(pid int) bool { return usesGPU("/proc", pid) }) {
		seen.GPUErrors = gpuErrors("/dev/kmsg", e.host, seen.Ranks)
	}
	return seen
}

// examination is a look at a job: what was seen of it twice, and what its Go ranks and recorders have answered between.
type examination struct {
	job           Job
	host          string
	reader        stacks.Reader
	before, after snapshot
	said          []goRank
	store         storeSaid
	sockets       *portowner.Sockets // read once, at the end
	frozen        map[string]bool    // by cgroup
	now           clocks
}

// snapshot is what can be seen of all ranks at one moment, in their order.
type snapshot struct {
	read []reading
	pids []int
	uses []use
}

func (e *examination) snapshot(ctx context.Context) snapshot {
	s := snapshot{read: readAll(ctx, &e.reader, e.job.Ranks)}
	s.uses = usesOf(s.read)
	s.pids = pidsOf(e.job.Ranks, s.read)
	return s
}

// askMeanwhile asks the store and the ranks. The answers are there when the function that it returns has returned.
func (e *examination) askMeanwhile(ctx context.Context, seen *verdict.Job, apart time.Duration, ask bool) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if said := e.job.ask(ctx, question{What: askWaits, Addr: e.job.asked()}).StoreSaid; said != nil {
			e.store = *said
		}
	})
	wg.Go(func() { seen.StoreTrouble = e.job.ask(ctx, question{What: askTrouble, Addr: e.job.asked()}).Said })
	for i, r := range e.job.Ranks {
		wg.Go(func() {
			if e.said[i] = askTwice(ctx, r, apart); e.said[i].dump == nil {
				e.said[i].dump = r.ask(ctx, question{What: askRecorder, Notes: ask}).Dump
			}
		})
	}
	return wg.Wait
}

// rank puts together what is known of a rank.
func (e *examination) rank(ctx context.Context, i int) verdict.Rank {
	r := e.job.Ranks[i]
	said, read := e.said[i], e.after.read[i]
	v := verdict.Rank{Rank: r.Rank, Host: e.host, PID: e.after.pids[i], Records: verdict.Records{Dump: said.dump, Worker: said.worker}}
	if v.World, _ = strconv.Atoi(r.env["WORLD_SIZE"]); r.env["MASTER_PORT"] != "" {
		v.Store, v.Gateway = storeIn(r.env), r.env[gateway]
	}
	v.Member = r.env[envMember] != ""
	e.process(&v)
	v.Reported = reported("/proc", v.PID)
	switch {
	case read.process != nil:
		e.python(ctx, &v, i)
	case len(said.goroutines) > 0:
		v.Threads = said.goroutines
		v.Main = verdict.MainGoroutine(v.Threads)
		v.Moved, v.Once, v.Idle = said.moved, said.once, verdict.GoIdle(v.Main)
	default:
		v.Trouble = read.trouble
	}
	return v
}

// process adds what the kernel reports of any process.
func (e *examination) process(v *verdict.Rank) {
	_, v.State = stat("/proc", v.PID)
	v.LostChildren, v.Frozen = deadChild(v.PID), e.isFrozen(v.PID)
	if v.State == "t" {
		v.Tracer = tracer("/proc", v.PID)
	}
	for _, addr := range e.sockets.Unanswered(v.PID) {
		v.Dials = append(v.Dials, addr.String())
	}
	for _, addr := range e.sockets.Listening(v.PID) {
		for _, one := range onHost(addr) {
			v.Listens = append(v.Listens, one.String())
		}
	}
	switch {
	case v.State == "Z" && headless("/proc", v.PID):
		v.Gone = "has lost its main thread, while its other threads still run"
	case v.State == "" || v.State == "Z":
		v.Gone = "has exited"
	}
}

// isFrozen reports whether the cgroup of a process is frozen. Each cgroup is asked once.
func (e *examination) isFrozen(pid int) bool {
	of := cgroup.Of("/", pid)
	frozen, known := e.frozen[of]
	if !known || of == "" {
		frozen = cgroup.Frozen("/", pid)
		e.frozen[of] = frozen
	}
	return frozen
}

// python adds the Python threads of a rank.
func (e *examination) python(ctx context.Context, v *verdict.Rank, i int) {
	first, now := e.before.read[i].process, e.after.read[i].process
	v.Threads, v.Main = now.Threads, now.Main()
	if first != nil {
		verdict.MarkServing(first.Threads, v.Threads)
	}
	if v.Main == nil {
		return
	}
	v.Moved = v.Main.Moving || first != nil && !same(first.Main(), v.Main)
	r := e.job.Ranks[i]
	r.PID = v.PID // a rank may run in a process below its own
	v.Loops = loops(ctx, r, first, v.Main)
	v.Line = sourceLine(ctx, r, v.Main)
	v.Ending = len(v.Main.Frames) == 0 && hasTorch(v.PID)
	v.Sleeps = slept(e.before.uses[i], e.after.uses[i])
	if v.Main.State != "R" {
		v.Idle = e.now.idle(v.PID, v.Main.ID)
	}
	v.Wakes = wakes(v.PID, v.Main.ID)
	v.Object = object(e.sockets, v.PID, v.Main.ID, v.Main.Kernel)
	if !v.Moved {
		e.standing(ctx, v)
	}
}

// standing adds what a main thread that has not moved may wait for: its GPU, a file lock, processes below it.
func (e *examination) standing(ctx context.Context, v *verdict.Rank) {
	v.GPU = v.Main.State == "R" && usesGPU("/proc", v.PID)
	if verdict.WaitsForFileLock(v.Main) {
		v.Holder = lockHolder("/proc", v.PID, e.owners())
	}
	if waitsBelow(v.Main) {
		v.Children, v.PoolIdle = below(ctx, &e.reader, v.PID)
	} else if pipe := pipeOf(v.PID, v.Main); pipe != "" {
		v.Children, _ = below(ctx, &e.reader, v.PID)
		v.Children = writing(v.Children, pipe)
	}
}

// owners returns the ranks by their processes.
func (e *examination) owners() map[int]int {
	owners := map[int]int{}
	for i, r := range e.job.Ranks {
		owners[e.after.pids[i]] = r.Rank
	}
	return owners
}

// lookAtStore looks at the store that the program itself names, and, while ranks meet there, at what may keep them from it.
func (e *examination) lookAtStore(ctx context.Context, seen *verdict.Job) {
	at := e.job.asked()
	if addr := verdict.ProgramStore(seen.Ranks); addr != "" && addr != seen.Store {
		at = addr
		seen.Store, seen.StoreTrouble = addr, e.job.ask(ctx, question{What: askTrouble, Addr: addr}).Said
	}
	if !verdict.Starting(seen.Ranks) {
		return
	}
	if seen.StoreTrouble == "" && len(seen.Waits) == 0 {
		seen.StoreTrouble = e.job.ask(ctx, question{What: askNoStore, Addr: at, PIDs: e.after.pids}).Said
	}
	seen.OldKeys = e.job.ask(ctx, question{What: askOldKeys, Addr: e.job.asked()}).Yes
}

// pidsOf returns the processes of ranks: those that run Python, where a rank's own is a shell, for instance.
func pidsOf(ranks []Rank, read []reading) []int {
	pids := make([]int, len(ranks))
	for i, r := range ranks {
		pids[i] = r.PID
		if p := read[i].process; p != nil {
			pids[i] = p.PID
		}
	}
	return pids
}

// Doing returns in a few words what each rank of a job does now.
func Doing(ctx context.Context, j Job) []string {
	var reader stacks.Reader
	all := make([]string, len(j.Ranks))
	for i, read := range readAll(ctx, &reader, j.Ranks) {
		switch {
		case read.process == nil:
			_, state := stat("/proc", j.Ranks[i].PID)
			all[i] = "state " + state
		case read.process.Main() != nil:
			all[i] = verdict.Where(read.process.Main().Frames, nil)
		}
		if read.process != nil {
			continue
		}
		reply := askGo(ctx, j.Ranks[i])
		if main := verdict.MainGoroutine(reply.goroutines); main != nil {
			all[i] = verdict.Where(main.Frames, reply.worker)
		}
	}
	return all
}
