// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/pystack"
)

// Spawned returns the job of a program that starts its ranks with torch.multiprocessing.spawn or multiprocessing.Process: they set
// RANK and MASTER_ADDR for themselves, which nobody sees from outside, so the process of the program, or of a rank, must be known. ok
// is false where there are none.
func Spawned(ctx context.Context, pid int) (j Job, ok bool) {
	var reader pystack.Reader
	for above, n := pid, 0; n < 2; n++ { // a fork server may be between them
		if above, _ = stat("/proc", above); above <= 1 {
			break
		}
		if j, _ = spawnedBy(ctx, &reader, above); slices.ContainsFunc(j.Ranks, func(r Rank) bool { return r.PID == pid }) {
			return j, true
		}
	}
	j, _ = spawnedBy(ctx, &reader, pid)
	return j, len(j.Ranks) > 0
}

// findSpawned returns the jobs of programs that start their ranks themselves, beside those that are known: a process that uses PyTorch
// below one that has no rank. Processes of which none has the number of a rank or is in a call of torch.distributed are no job.
func findSpawned(ctx context.Context, proc string, known map[int]process) []Job {
	var reader pystack.Reader
	var programs []int
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if _, ranked := known[pid]; err != nil || ranked || !hasTorch(pid) {
			continue
		}
		above, _ := stat(proc, pid)
		if p, err := reader.Read(ctx, above); err == nil && p.Main() != nil && forkServer(p.Main().Frames) {
			above, _ = stat(proc, above)
		}
		if _, ranked := known[above]; !ranked && above > 1 {
			programs = append(programs, above)
		}
	}
	var all []Job
	slices.Sort(programs)
	for _, pid := range slices.Compact(programs) {
		if j, sure := spawnedBy(ctx, &reader, pid); sure {
			all = append(all, j)
		}
	}
	return all
}

// spawnedBy returns the job of a program. Its processes are surely ranks if they have numbers or are in calls of torch.distributed.
func spawnedBy(ctx context.Context, reader *pystack.Reader, pid int) (j Job, sure bool) {
	j = Job{ID: strconv.Itoa(pid), Local: true}
	var all []spawned
	children := childrenOf(pid)
	for i := 0; i < len(children); i++ {
		child := children[i]
		p, err := reader.Read(ctx, child)
		if err != nil || p.Main() == nil {
			if _, state := stat("/proc", child); state == "Z" {
				all = append(all, spawned{rank: -1}) // it may have been one: those after it keep their numbers
			}
			continue
		}
		if forkServer(p.Main().Frames) {
			children = append(children, childrenOf(child)...)
			continue
		}
		s, found := spawnedAs(p.Main().Frames)
		if !found || s.by == plainProcess && !hasTorch(child) {
			continue
		}
		s.pid = child
		all = append(all, s)
		sure = sure || s.rank >= 0 || slices.ContainsFunc(p.Threads, distributed)
	}
	named := slices.ContainsFunc(all, func(s spawned) bool { return s.rank >= 0 })
	known := 0 // the size of the world, where the program tells it
	for i, s := range all {
		switch {
		case s.pid == 0, named && s.rank < 0: // a process without a number beside those with one helps them
			continue
		case s.rank < 0:
			s.rank = i // in the order in which they were started
		}
		r := Describe(s.rank, s.pid)
		r.Command = s.by
		j.Ranks = append(j.Ranks, r)
		j.World, known = max(j.World, s.rank+1), max(known, s.world)
	}
	if known > 0 {
		j.World = known
	}
	return j, sure
}

func distributed(t pystack.Thread) bool {
	return slices.ContainsFunc(t.Frames, func(f pystack.Frame) bool { return strings.Contains(f.File, "/torch/distributed/") })
}

// forkServer reports whether a process is the one that multiprocessing has start all others. Those have calls of it, too.
func forkServer(frames []pystack.Frame) bool {
	return len(frames) > 0 && !slices.ContainsFunc(frames, pystack.StartsTarget) && slices.ContainsFunc(frames, func(f pystack.Frame) bool {
		return strings.HasSuffix(f.File, "/multiprocessing/forkserver.py")
	})
}

const (
	torchSpawn   = "torch.multiprocessing.spawn"
	plainProcess = "multiprocessing.Process"
)

// spawned is what the stack of a process that its program has started tells of it.
type spawned struct {
	pid   int // 0: it has ended
	by    string
	rank  int // -1: not known
	world int // 0: not known
}

// spawnedAs looks for what has started a process. Processes that run a library's code are no ranks: they serve a pool or a data
// loader.
func spawnedAs(frames []pystack.Frame) (s spawned, found bool) {
	for i, f := range frames {
		switch {
		case f.Func == "_wrap" && strings.HasSuffix(f.File, pystack.SpawnFile):
			n := number(f.Args, "i")
			return spawned{by: torchSpawn, rank: n}, n >= 0
		case pystack.StartsTarget(f):
			if i == 0 || pystack.Library(frames[i-1].File) {
				return spawned{}, false
			}
			args := frames[i-1].Args
			n := number(args, "rank")
			if n < 0 {
				n = number(args, "local_rank")
			}
			return spawned{by: plainProcess, rank: n, world: max(0, number(args, "world_size"))}, true
		}
	}
	return spawned{}, false
}

// number returns the argument of a call with a name, -1 if it has none that is a number.
func number(args, name string) int {
	for arg := range strings.FieldsSeq(args) {
		if value, found := strings.CutPrefix(arg, name+"="); found {
			if n, err := strconv.Atoi(value); err == nil && n >= 0 {
				return n
			}
		}
	}
	return -1
}
