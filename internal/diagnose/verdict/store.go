// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// The keys that gloo's ranks wait for. The last number is the rank in the group that has to set it.
var (
	addressKey  = regexp.MustCompile(`/0//(?:cpu|cuda)//\d+/(\d+)$|/default_pg/0/\d+/(?:rank_)?(\d+)$`) // the second of PyTorch 1.13
	subgroupKey = regexp.MustCompile(`/0//(\d+)//(?:cpu|cuda)//\d+/(\d+)$`)

	// goKey is what the ranks of a Go group wait for, sub-groups included; see package assemble. worldKey is that of the whole job.
	goKey    = regexp.MustCompile(`\bcohort/group/.*/rank/(\d+)$`)
	worldKey = regexp.MustCompile(`\bcohort/group/0/\d+/\d+/rank/\d+$`)

	// deadKey is what Go ranks wait for besides, when ranks have died before all had come; see package assemble.
	deadKey = regexp.MustCompile(`/(ranks? [0-9,-]+), which joined and then died$`)
)

// keys finds the rank that sets the key that others wait for: it may run on another host.
func (c *analysis) keys(waiting []int) (Verdict, bool) {
	late, inGo, inSub := map[int]bool{}, map[int]bool{}, map[int]bool{} // of PyTorch's keys, of the group of a Go job, of its sub-groups
	group, dead := "", ""
	for _, w := range c.job.Waits {
		if m := subgroupKey.FindStringSubmatch(w.Key); m != nil {
			group = m[1]
			n, _ := strconv.Atoi(m[2])
			late[n] = true
		} else if m := addressKey.FindStringSubmatch(w.Key); m != nil {
			n, _ := strconv.Atoi(m[1] + m[2])
			late[n] = true
		} else if m := goKey.FindStringSubmatch(w.Key); m != nil {
			n, _ := strconv.Atoi(m[1])
			if worldKey.MatchString(w.Key) {
				inGo[n] = true
			} else {
				inSub[n] = true
			}
		} else if m := deadKey.FindStringSubmatch(w.Key); m != nil {
			dead = "; " + m[1] + " joined and then died"
		}
	}
	oldest := time.Duration(0)
	for _, w := range c.job.Waits {
		oldest = max(oldest, w.Age)
	}
	what := "not called init_process_group"
	switch {
	case group != "":
		what = "not called new_group number " + group
	case len(late) > 0:
	case len(inGo) > 0:
		late, what = inGo, "not joined the group"
	case len(inSub) > 0: // which ranks of the job these are, the keys do not tell
		ranks := slices.Sorted(maps.Keys(inSub))
		return Verdict{Sentence: fmt.Sprintf("In a subgroup, %s %s not joined%s; %s%s.", lower(name(ranks)), has(ranks), dead,
			waits(waiting), since(oldest))}, true
	default:
		return Verdict{}, false
	}
	ranks := slices.Sorted(maps.Keys(late))
	if world := c.job.World; world > 0 && ranks[0] >= world {
		return Verdict{
			Culprits: ranks,
			Sentence: fmt.Sprintf(
				"The program wants more ranks than there are: WORLD_SIZE is %d, but %s for rank %d, which does not exist; compare "+
					"world_size in the program with the number of workers.",
				world, waits(waiting), ranks[0]),
		}, true
	}
	return Verdict{Culprits: ranks, Sentence: fmt.Sprintf("%s %s %s%s; %s%s.", name(ranks), has(ranks), what, dead, waits(waiting),
		since(oldest))}, true
}

// unreachable: ranks set up a group and cannot reach the store.
func (c *analysis) unreachable() (Verdict, bool) {
	here := c.ranks(func(r Rank, p position) bool { return p.class == inInit && !c.elsewhere(r) })
	if c.job.StoreTrouble == "" || len(here) == 0 {
		return Verdict{}, false
	}
	v := Verdict{Sentence: fmt.Sprintf("%s cannot reach the store at %s: %s%s", name(here), c.job.Store, c.job.StoreTrouble,
		since(c.rank(here[0]).Idle))}
	switch host := c.rank(0); {
	case host == nil:
		v.Culprits = []int{0}
		v.Sentence += "; rank 0, which hosts it unless a launcher does, does not run on this host"
	case host.Gone == "" && host.Main != nil && !c.at[0].waits():
		v.Culprits = []int{0}
		v.Sentence += "; rank 0, which hosts it unless a launcher does, has not called init_process_group: it is in " +
			c.at[0].doing() + c.spent(0)
	}
	v.Sentence += "."
	return v, true
}

// elsewhere reports whether a rank has another store than that of the job: the program names it, or the rank has a connection.
func (c *analysis) elsewhere(r Rank) bool {
	_, err := netip.ParseAddrPort(r.Object)
	store := settingsOf(r).store
	return err == nil || store != c.job.Store && (store != "" || r.Store != "")
}

// store: ranks wait for a key of the store outside of what torch.distributed does by itself.
func (c *analysis) store() (Verdict, bool) {
	for _, w := range c.job.Waits {
		if w.Rank < 0 || w.Age < time.Second {
			continue
		}
		if r := c.rank(w.Rank); r != nil && r.Gone == "" && !c.at[w.Rank].waits() {
			var all []int
			for _, other := range c.job.Waits {
				if other.Key == w.Key && other.Rank >= 0 && !slices.Contains(all, other.Rank) {
					all = append(all, other.Rank)
				}
			}
			slices.Sort(all)
			return Verdict{Sentence: fmt.Sprintf("%s %s for the key %s in the store%s, in %s; no rank has set it%s.", name(all),
				verb(all, "wait"), w.Key, since(w.Age), c.at[w.Rank].where(), c.ended())}, true
		}
	}
	// PyTorch's own store does not report who waits for what. A rank that is at work may be about to set the key.
	if len(c.ranks(func(r Rank, _ position) bool { return r.atWork() })) > 0 {
		return Verdict{}, false
	}
	// One that has run in between, and not only for a moment, was found twice at a question that it asks in each step of its work.
	ran := func(r Rank) bool { return !r.Sleeps && (r.Main.State == "R" || r.Idle > 0 && r.Idle < apart) }
	if here := c.ranks(func(r Rank, p position) bool {
		return r.Object == theStore && !p.waits() && r.Main != nil &&
			!ran(r)
	}); len(here) > 0 {
		return Verdict{Sentence: fmt.Sprintf("%s %s for the store, in %s%s: probably for a key that no rank has set%s.",
			name(here), verb(here, "wait"), c.at[here[0]].where(), since(c.rank(here[0]).Idle), c.ended())}, true
	}
	return Verdict{}, false
}

// theStore is what a rank reads from that asks the job's store.
const theStore = "the store"

// sameAddress reports whether a rank that is connected to an address is connected to the job's store. A name may stand for any address.
func sameAddress(object, store string) bool {
	addr, err := netip.ParseAddrPort(object)
	colon := strings.LastIndexByte(store, ':')
	if err != nil || colon < 0 || store[colon+1:] != strconv.Itoa(int(addr.Port())) {
		return false
	}
	ip, err := netip.ParseAddr(strings.Trim(store[:colon], "[]"))
	return err != nil || ip.Unmap() == addr.Addr().Unmap() || ip.IsLoopback() && addr.Addr().Unmap().IsLoopback()
}

// Loops reports whether a thread was in the same function of the program in two readings, called from the same lines,
// had called nothing else there, and asked a store or slept at first. line is the text of the line that it was in then.
func Loops(a, b *stacks.Thread, line string) bool {
	if a == nil || b == nil {
		return false
	}
	i, j := itself(a), itself(b)
	if i < 0 || j < 0 || !asks.MatchString(line) && !rests(a, line) {
		return false
	}
	return a.Frames[i].Func == b.Frames[j].Func && a.Frames[i].File == b.Frames[j].File && reflect.DeepEqual(a.Frames[i+1:], b.Frames[j+1:])
}

// itself returns the number of the innermost call of a thread if that is one of the program, but for a wait of Python's
// threading; -1 if it is not.
func itself(t *stacks.Thread) int {
	i := slices.IndexFunc(t.Frames, func(f stacks.Frame) bool { return path.Base(f.File) != "threading.py" })
	if i < 0 || stacks.Library(t.Frames[i].File) {
		return -1
	}
	return i
}

// rests reports whether a thread sleeps in a line of the program.
func rests(t *stacks.Thread, line string) bool {
	return kernelWait(t, "") == inSleep || itself(t) > 0 || sleepLine.MatchString(line)
}

var (
	// ofTorch are keys that threads of PyTorch's own look for all the time.
	ofTorch = regexp.MustCompile(`(dump|dump_signal|remote_error)$`)
	// asks is a line of a program that asks a store for a key, and sleepLine one that sleeps.
	asks      = regexp.MustCompile(`(?i)store\w*(\(\))?\.(get|add|check)\(`)
	sleepLine = regexp.MustCompile(`\bsleep\(`)
)

// polled notes that the main thread of a rank asks the store for a key again and again, and gets nowhere: the store has given it the same
// answer for some time, and whenever it was looked at it slept or asked. A program may also look for a key in each step of its work. So one
// that was found at something else, or has used the processor for more than a little, is at work. Beside other threads of the program,
// which may be those who ask, it has to be found asking.
func (c *analysis) polled(r *Rank) {
	p := c.at[r.Rank]
	i := slices.IndexFunc(c.job.Polls, func(w Wait) bool { return w.Rank == r.Rank && w.Age >= time.Second && !ofTorch.MatchString(w.Key) })
	if i < 0 || r.Gone != "" || !r.Loops || !r.Sleeps || p.class != inProgram {
		return
	}
	others := slices.ContainsFunc(r.Threads, func(t stacks.Thread) bool { return t.ID != r.Main.ID && ownCode(t.Frames) })
	asking := r.Object == theStore || r.Object == "" && asks.MatchString(r.Line)
	if !asking && (others || !rests(r.Main, r.Line)) {
		return
	}
	r.polls, r.Moved, r.Wakes = &c.job.Polls[i], false, 0
	p.how = "polling the store for the key " + r.polls.Key + always(r.polls)
	c.at[r.Rank] = p
}

// always returns the value that every poll was answered with: " (always 2)".
func always(w *Wait) string {
	if w.Answer == "" {
		return ""
	}
	return " (always " + w.Answer + ")"
}

// polling: ranks ask the store for a key again and again, which no rank changes.
func (c *analysis) polling() (Verdict, bool) {
	here := c.ranks(func(r Rank, _ position) bool { return r.polls != nil })
	if len(here) == 0 || len(c.ranks(func(r Rank, _ position) bool { return r.atWork() })) > 0 {
		return Verdict{}, false // who is at work may change it
	}
	var keys []string
	by := map[string][]int{}
	for _, n := range here {
		key := c.rank(n).polls.Key
		if by[key] == nil {
			keys = append(keys, key)
		}
		by[key] = append(by[key], n)
	}
	const most = 4
	var parts []string
	for _, key := range keys[:min(len(keys), most)] {
		n := by[key]
		w, p := c.rank(n[0]).polls, c.at[n[0]]
		parts = append(parts, fmt.Sprintf("%s %s the store for the key %s%s, in %s%s", lower(name(n)), verb(n, "poll"), key,
			always(w), p.where(), since(w.Age)))
	}
	return Verdict{Sentence: upper(strings.Join(parts, "; ")) + ": no rank changes it" + c.others(here...) + c.ended() + "."}, true
}
