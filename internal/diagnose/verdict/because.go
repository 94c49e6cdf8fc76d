// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// because says what keeps a late rank where it is, as far as that is known: a clause that follows where it is.
func (c *analysis) because(rank int) string {
	text := c.cause(rank)
	if raised := c.rank(rank).Raised; raised != "" {
		text += "; the last thing it printed is " + raised
	}
	return text
}

// cause says that without what the rank has printed.
func (c *analysis) cause(rank int) string {
	r, p := c.rank(rank), c.at[rank]
	text := ""
	switch {
	case p.loads && r.LostChildren:
		text = ", for a data loader worker that has died"
	case len(r.Children) > 0:
		text = childText(r.Children)
	case r.PoolIdle && r.Main != nil && slices.ContainsFunc(r.Main.Frames, inPool) && !slices.ContainsFunc(r.Threads, poolThread):
		text = ", and no process of the pool runs a task: one that did has probably been killed, which the pool does not notice"
	case r.LostChildren && r.Main != nil && slices.ContainsFunc(r.Main.Frames,
		func(f stacks.Frame) bool { return strings.Contains(f.File, "/multiprocessing/") }):
		text = ", and a process that it started has exited"
	}
	if i := slices.IndexFunc(c.job.Waits, func(w Wait) bool { return w.Rank == rank && w.Age >= time.Second }); i >= 0 {
		text += ", for the key " + c.job.Waits[i].Key + " in the store, which no rank has set"
	}
	return text + threadText(r, p)
}

// inPool reports whether a call waits for what processes of a multiprocessing.Pool do.
func inPool(f stacks.Frame) bool {
	return strings.HasSuffix(f.File, "/multiprocessing/pool.py") && strings.HasSuffix(f.Func, "Result.get")
}

// poolThread reports whether a thread does the work of a pool: that of a ThreadPool, which has no processes, or a callback of the
// program for what a process has done.
func poolThread(t stacks.Thread) bool {
	return slices.ContainsFunc(t.Frames, func(f stacks.Frame) bool {
		return strings.HasSuffix(f.File, "/multiprocessing/pool.py") &&
			(f.Func == "worker" || strings.Contains(f.Func, "_handle_") && ownCode(t.Frames))
	})
}

// threadText says what another thread does that a rank may wait for.
func threadText(r *Rank, p position) string {
	if r.Main == nil || r.Moved || !strings.HasPrefix(r.Main.Kernel, "futex_") || ending(*r) != "" {
		return ""
	}
	if other := otherLock(r); p.lock && other != nil {
		return fmt.Sprintf(", and its thread %d in %s: perhaps each holds a lock that the other waits for", other.ID,
			locateFrames(other.Frames).where())
	}
	for i := range r.Threads {
		t := &r.Threads[i]
		if t.ID == r.Main.ID || !ownCode(t.Frames) {
			continue
		}
		q := locateFrames(t.Frames)
		q.how, _ = manner(t, "")
		if t.Moving {
			q.how = ""
		}
		if strings.Contains(p.how, "Thread.join of") || strings.Contains(p.how, "Future.result of") {
			return fmt.Sprintf(", for its thread %d, which is in %s", t.ID, q.doing())
		}
		return fmt.Sprintf(", while its thread %d is in %s", t.ID, q.doing())
	}
	switch {
	case strings.HasSuffix(p.how, "Queue.get of queue.py"):
		return ", and it has no other thread that could fill the queue"
	case p.how == "waiting for a lock":
		return ", and it has no other thread that could release it: perhaps it holds the lock itself, or another process does"
	}
	return ""
}

// stuck reports whether a process runs the program anew, and has come to a call that waits for other ranks.
func (ch Child) stuck() bool { return ch.Imports && locateFrames(ch.Frames).waits() }

// childText names the child that a rank waits for: one that runs code of the program, else one of another program.
func childText(children []Child) string {
	for _, ch := range children {
		if p := locateFrames(ch.Frames); len(ch.Frames) > 0 && p.own != "" {
			how, _ := manner(&stacks.Thread{Frames: ch.Frames, Kernel: ch.Kernel}, "")
			if ch.Stopped {
				how = "stopped (SIGSTOP or a debugger)"
			}
			if how != "" {
				how = ", " + how
			}
			if ch.stuck() {
				return fmt.Sprintf(
					", for its process %d, which imports the program again and is in %s: put that call under if __name__ == "+
						"\"__main__\"", ch.PID, p.where())
			}
			return fmt.Sprintf(", for its process %d, which is in %s%s", ch.PID, p.where(), how)
		}
	}
	for _, ch := range slices.Backward(children) { // a shell comes before the program that it runs
		if len(ch.Frames) == 0 {
			return fmt.Sprintf(", for its process %d (%s)", ch.PID, ch.Command)
		}
	}
	return ""
}

// ending says for which thread a program waits at its end, "" if it does not.
func ending(r Rank) string {
	frames := r.Main.Frames
	if len(frames) == 0 || frames[len(frames)-1].Func != "_shutdown" || !strings.HasSuffix(frames[len(frames)-1].File, "/threading.py") {
		return ""
	}
	for _, t := range r.Threads {
		if p := locateFrames(t.Frames); t.ID != r.Main.ID && p.own != "" {
			return fmt.Sprintf("waiting at exit for its thread %d (not a daemon thread), which is in %s", t.ID, p.where())
		}
	}
	return ""
}

// otherLock finds a second thread of a rank that waits for a lock in the program's own code.
func otherLock(r *Rank) *stacks.Thread {
	for i := range r.Threads {
		t := &r.Threads[i]
		if r.Main == nil || t.ID == r.Main.ID || t.Moving || len(t.Frames) == 0 || stacks.Library(t.Frames[0].File) ||
			!strings.HasPrefix(t.Kernel, "futex_") {
			continue
		}
		return t
	}
	return nil
}
