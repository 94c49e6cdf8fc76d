// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// Communicator is a group of ranks of NCCL, as its own network knows it.
type Communicator struct {
	Size int
	// Started is what its ranks have started.
	Started []Started
}

// Started is how many collectives of each kind some ranks of the job have started, all of them equally many.
type Started struct {
	Counts map[string]int
	Ranks  []int
}

func (s Started) total() int {
	n := 0
	for _, count := range s.Counts {
		n += count
	}
	return n
}

// communicators judges by what NCCL itself has counted. A rank that moves is not waiting for those that are behind.
func (c *analysis) communicators() (Verdict, bool) {
	for _, comm := range c.job.Communicators {
		if len(comm.Started) < 2 {
			continue
		}
		most := slices.MaxFunc(comm.Started, func(a, b Started) int { return a.total() - b.total() })
		var ahead, behind []int
		least := most
		for _, s := range comm.Started {
			if s.total() == most.total() {
				ahead = append(ahead, s.Ranks...)
				continue
			}
			behind = append(behind, s.Ranks...)
			if s.total() < least.total() {
				least = s
			}
		}
		if slices.ContainsFunc(ahead, func(n int) bool { r := c.rank(n); return r != nil && r.atWork() }) {
			continue
		}
		slices.Sort(ahead)
		slices.Sort(behind)
		of := fmt.Sprintf(" of an NCCL communicator of %d ranks", comm.Size)
		if len(behind) > 0 {
			return c.lagging(behind, "not started "+lacks(least, most)+of, ahead), true
		}
		kinds := map[string][]int{}
		for _, s := range comm.Started {
			kind := extra(s, comm.Started)
			kinds[kind] = append(kinds[kind], s.Ranks...)
		}
		if len(kinds) < 2 {
			continue
		}
		return c.differ(kinds, func(n int) string {
			for kind, ranks := range kinds {
				if slices.Contains(ranks, n) {
					return kind
				}
			}
			return ""
		}, fmt.Sprintf(", as one of the first %d%s", most.total(), of)), true
	}
	return Verdict{}, false
}

// lagging says that ranks are behind. NCCL knows of ranks on other hosts, too, of which no more was seen.
func (c *analysis) lagging(behind []int, what string, ahead []int) Verdict {
	unseen := func(n int) bool { return c.rank(n) == nil }
	seen := slices.DeleteFunc(slices.Clone(behind), unseen)
	rest := slices.DeleteFunc(slices.Clone(behind), func(n int) bool { return !unseen(n) })
	if len(seen) == 0 {
		return Verdict{
			Culprits: behind,
			Sentence: fmt.Sprintf("%s %s %s; %s on another host, where cohort why can tell more; %s%s.", name(behind), has(behind),
				what, pronoun(behind), waits(ahead), since(c.waited(ahead))),
		}
	}
	v := c.late(seen, what, ahead)
	if len(rest) > 0 {
		v.Culprits = behind
		v.Sentence = fmt.Sprintf("%s; nor %s %s, on other hosts.", strings.TrimSuffix(v.Sentence, "."), has(rest), lower(name(rest)))
	}
	return v
}

// Progress is how far the flight recorders of ranks have come; "" if none was read. It stays the same while a job stands still.
func Progress(ranks []Rank) string {
	var out strings.Builder
	for _, r := range ranks {
		if r.Dump == nil {
			continue
		}
		last := map[string]int{}
		for _, e := range r.Dump.Entries {
			last[e.Group] = max(last[e.Group], e.Seq)
		}
		fmt.Fprintln(&out, r.Rank, last)
	}
	return out.String()
}

// lacks names what a rank that is behind has not started: "AllReduce number 6".
func lacks(behind, ahead Started) string {
	var kinds []string
	for kind, n := range ahead.Counts {
		if n > behind.Counts[kind] {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 1 {
		return fmt.Sprintf("%s number %d", kinds[0], behind.Counts[kinds[0]]+1)
	}
	return fmt.Sprintf("collective number %d", behind.total()+1)
}

// extra names the kinds of collectives that some ranks have started more often than others.
func extra(s Started, all []Started) string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(s.Counts)) {
		if slices.ContainsFunc(all, func(other Started) bool { return other.Counts[kind] < s.Counts[kind] }) {
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, " and ")
}

// onGPU reports whether the main thread of a rank probably waits for its GPU: it runs in a call of C that the program or PyTorch has
// made. The processor is busy while it waits; a library that computes on it has a function of Python in between.
func onGPU(r Rank) bool {
	if !r.GPU || r.Main == nil || len(r.Main.Frames) == 0 {
		return false
	}
	file := r.Main.Frames[0].File
	return !stacks.Library(file) || strings.Contains(file, "/torch/") && !strings.Contains(file, "/torch/utils/data/") &&
		!strings.HasSuffix(file, "/torch/serialization.py")
}

// onlyGPU reports whether ranks wait for nothing but their GPUs, as far as can be told.
func (c *analysis) onlyGPU(ranks []int) bool {
	return len(ranks) > 0 && !slices.ContainsFunc(ranks, func(n int) bool { return !c.at[n].gpu })
}

// devices: ranks wait for their GPUs. What those compute cannot be seen, so it is not certain that the job hangs.
func (c *analysis) devices() (Verdict, bool) {
	here := c.ranks(func(r Rank, p position) bool { return p.gpu && !r.Moved && p.meets() })
	if len(here) == 0 {
		return Verdict{}, false
	}
	late := c.ranks(func(r Rank, p position) bool { return r.Main != nil && !p.meets() })
	others := slices.DeleteFunc(c.still(inCollective, inWork), func(n int) bool { return slices.Contains(here, n) })
	text := fmt.Sprintf("%s %s for a GPU, in %s", name(here), verb(here, "wait"), c.at[here[0]].where())
	switch {
	case slices.ContainsFunc(late, func(n int) bool { return c.rank(n).atWork() }):
		return Verdict{}, false // the GPUs may be at work, too
	case len(late) > 0:
		v := c.late(late, "perhaps not started the operation that is waited for in "+c.at[here[0]].where(), here)
		v.Still, v.Unseen = true, true
		return v, true
	case len(others) > 0:
		text += ", and " + c.waitIn(others)
	}
	text += ": perhaps hung; it may still compute"
	if c.job.World != 1 {
		text += ", or be in a collective that not all ranks have entered"
	}
	return Verdict{Still: true, Unseen: true, Sentence: text + c.perhapsBroken(here) + "."}, true
}

// ofOne are the errors that end one process and leave the GPU to others: of a process that is not a rank they say nothing of the job.
var ofOne = []int{13, 31, 45, 74, 94}

// failed returns the first fatal error that may be why ranks wait: others may follow from it. One that came long before they waited is not.
func (c *analysis) failed(waiting []int, of func(GPUError) bool) *GPUError {
	waited := c.waited(waiting)
	i := slices.IndexFunc(c.job.GPUErrors, func(e GPUError) bool {
		old := waited > 0 && e.Age > 2*waited+time.Minute
		return e.Fatal && of(e) && !old
	})
	if i < 0 {
		return nil
	}
	return &c.job.GPUErrors[i]
}

// broken: a GPU has failed in the process of a rank, and ranks wait. The kernel knows more of it than the ranks.
func (c *analysis) broken() (Verdict, bool) {
	waiting := c.waiting()
	e := c.failed(waiting, func(e GPUError) bool { return e.Rank >= 0 })
	if e == nil || len(waiting) == 0 {
		return Verdict{}, false
	}
	v := Verdict{
		Culprits: []int{e.Rank},
		Sentence: fmt.Sprintf("The GPU %s of host %s has failed: %s (Xid %d%s), in the process of rank %d", e.Device, e.Host,
			e.Words, e.Number, ago(e.Age), e.Rank),
	}
	if waiting = slices.DeleteFunc(waiting, func(n int) bool { return n == e.Rank }); len(waiting) > 0 {
		v.Sentence += "; " + waits(waiting) + since(c.waited(waiting))
	}
	v.Sentence += "."
	return v, true
}

// perhapsBroken names a GPU that has failed and may be one that ranks wait for: the kernel does not say whose it was.
func (c *analysis) perhapsBroken(waiting []int) string {
	e := c.failed(waiting, func(e GPUError) bool { return e.Rank < 0 && !slices.Contains(ofOne, e.Number) })
	if e == nil {
		return ""
	}
	return fmt.Sprintf("; the GPU %s of host %s has failed and may be the one: %s (Xid %d%s)", e.Device, e.Host, e.Words, e.Number,
		ago(e.Age))
}

// ago returns ", 94 s ago", or nothing for what was just now.
func ago(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	return ", " + strconv.FormatInt(int64(d.Seconds()), 10) + " s ago"
}

// logged lists what the kernel has logged of GPUs.
func (c *analysis) logged() []string {
	const most = 8
	var out []string
	for _, e := range c.job.GPUErrors[:min(len(c.job.GPUErrors), most)] {
		out = append(out, fmt.Sprintf("the kernel of host %s has logged Xid %d of the GPU %s%s: %s", e.Host, e.Number, e.Device,
			ago(e.Age), e.Words))
	}
	return out
}
