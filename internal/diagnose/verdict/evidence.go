// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/torchdump"
)

// The keys that gloo's ranks wait for. The last number is the rank in the group that has to set it.
var (
	addressKey  = regexp.MustCompile(`/0//(?:cpu|cuda)//\d+/(\d+)$|/default_pg/0/\d+/(?:rank_)?(\d+)$`) // the second of PyTorch 1.13
	subgroupKey = regexp.MustCompile(`/0//(\d+)//(?:cpu|cuda)//\d+/(\d+)$`)

	// goKey is what the ranks of a Go group wait for, sub-groups included; see package muster. worldKey is that of the whole job.
	goKey    = regexp.MustCompile(`\bcohort/group/.*/rank/(\d+)$`)
	worldKey = regexp.MustCompile(`\bcohort/group/0/\d+/\d+/rank/\d+$`)

	// deadKey is what Go ranks wait for besides, when ranks have died before all had come; see package muster.
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
		return Verdict{Sentence: fmt.Sprintf("In a subgroup, %s %s not joined%s; %s%s.", lower(name(ranks)), has(ranks), dead, waits(waiting), since(oldest))}, true
	default:
		return Verdict{}, false
	}
	ranks := slices.Sorted(maps.Keys(late))
	if world := c.job.World; world > 0 && ranks[0] >= world {
		return Verdict{Culprits: ranks, Sentence: fmt.Sprintf("The program wants more ranks than there are: WORLD_SIZE is %d, but %s for rank %d, which does not exist; compare world_size in the program with the number of workers.",
			world, waits(waiting), ranks[0])}, true
	}
	return Verdict{Culprits: ranks, Sentence: fmt.Sprintf("%s %s %s%s; %s%s.", name(ranks), has(ranks), what, dead, waits(waiting), since(oldest))}, true
}

// unreachable: ranks set up a group and cannot reach the store.
func (c *analysis) unreachable() (Verdict, bool) {
	here := c.ranks(func(r Rank, p position) bool { return p.class == inInit && !c.elsewhere(r) })
	if c.job.StoreTrouble == "" || len(here) == 0 {
		return Verdict{}, false
	}
	v := Verdict{Sentence: fmt.Sprintf("%s cannot reach the store at %s: %s%s", name(here), c.job.Store, c.job.StoreTrouble, since(c.rank(here[0]).Idle))}
	switch host := c.rank(0); {
	case host == nil:
		v.Culprits = []int{0}
		v.Sentence += "; rank 0, which hosts it unless a launcher does, does not run on this host"
	case host.Gone == "" && host.Main != nil && !c.at[0].waits():
		v.Culprits = []int{0}
		v.Sentence += "; rank 0, which hosts it unless a launcher does, has not called init_process_group: it is in " + c.at[0].doing() + c.spent(0)
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
			return Verdict{Sentence: fmt.Sprintf("%s %s for the key %s in the store%s, in %s; no rank has set it%s.", name(all), verb(all, "wait"), w.Key, since(w.Age), c.at[w.Rank].where(), c.ended())}, true
		}
	}
	// PyTorch's own store does not tell who waits for what. A rank that is at work may be about to set the key.
	if len(c.ranks(func(r Rank, _ position) bool { return r.atWork() })) > 0 {
		return Verdict{}, false
	}
	// One that has run in between, and not only for a moment, was found twice at a question that it asks in each step of its work.
	ran := func(r Rank) bool { return !r.Sleeps && (r.Main.State == "R" || r.Idle > 0 && r.Idle < apart) }
	if here := c.ranks(func(r Rank, p position) bool { return r.Object == theStore && !p.waits() && r.Main != nil && !ran(r) }); len(here) > 0 {
		return Verdict{Sentence: fmt.Sprintf("%s %s for the store, in %s%s: probably for a key that no rank has set%s.", name(here), verb(here, "wait"), c.at[here[0]].where(), since(c.rank(here[0]).Idle), c.ended())}, true
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

// open is the first unfinished collective of a rank in a group.
type open struct {
	entry torchdump.Entry
	group string
}

// recorders judges by flight recorder dumps: PyTorch's own record of what each rank has called.
func (c *analysis) recorders() (Verdict, bool) {
	opens := map[int]open{}
	last := map[string]map[int]torchdump.Entry{} // by group and rank
	members := map[string][]int{}
	for _, r := range c.job.Ranks {
		if r.Dump == nil {
			continue
		}
		maps.Copy(members, r.Dump.Members)
		for _, e := range r.Dump.Entries {
			if e.P2P {
				continue
			}
			key := e.Group
			if last[key] == nil {
				last[key] = map[int]torchdump.Entry{}
			}
			if e.Seq >= last[key][r.Rank].Seq {
				last[key][r.Rank] = e
			}
			if _, found := opens[r.Rank]; !found && e.Open && !r.Moved { // one that moves does not wait for it
				opens[r.Rank] = open{e, key}
			}
		}
	}
	if len(opens) == 0 {
		return Verdict{}, false
	}
	if v, found := c.crossed(opens, last, members); found {
		return v, true
	}
	var behind *Verdict
	for _, key := range groupsOf(opens) {
		v, found := c.group(key, opens, last, members)
		waits := func(n int) bool { return opens[n].group != "" && opens[n].group != key }
		switch {
		case found && !slices.ContainsFunc(v.Culprits, waits):
			return v, true
		case found && behind == nil:
			behind = &v // it waits in another group itself: that says more
		}
	}
	if behind == nil {
		return Verdict{}, false
	}
	return *behind, true
}

func groupsOf(opens map[int]open) []string {
	var all []string
	for _, o := range opens {
		if !slices.Contains(all, o.group) {
			all = append(all, o.group)
		}
	}
	slices.Sort(all)
	return all
}

// crossed: two ranks wait for each other in different groups.
func (c *analysis) crossed(opens map[int]open, last map[string]map[int]torchdump.Entry, members map[string][]int) (Verdict, bool) {
	for _, a := range c.job.Ranks {
		for _, b := range c.job.Ranks {
			oa, foundA := opens[a.Rank]
			ob, foundB := opens[b.Rank]
			if a.Rank >= b.Rank || !foundA || !foundB || oa.group == ob.group || !c.belongs(b.Rank, oa, last, members) || !c.belongs(a.Rank, ob, last, members) {
				continue
			}
			if last[oa.group][b.Rank].Seq < oa.entry.Seq && last[ob.group][a.Rank].Seq < ob.entry.Seq {
				return Verdict{
					Culprits: []int{a.Rank, b.Rank},
					Sentence: fmt.Sprintf("Ranks %d and %d wait for each other in different groups: rank %d in %s of %s (%s), rank %d in %s of %s (%s).",
						a.Rank, b.Rank, a.Rank, oa.entry.Op, title(oa.entry), c.lineOf(a.Rank, oa.entry), b.Rank, ob.entry.Op, title(ob.entry), c.lineOf(b.Rank, ob.entry)),
				}, true
			}
		}
	}
	return Verdict{}, false
}

// belongs reports whether a rank is known to be in the group of an unfinished collective. gloo's recorder does not tell the members of
// its groups.
func (c *analysis) belongs(rank int, o open, last map[string]map[int]torchdump.Entry, members map[string][]int) bool {
	if _, called := last[o.group][rank]; called || o.entry.Desc == "default_pg" || slices.Contains(members[o.group], rank) {
		return true
	}
	return members[o.group] == nil && c.job.World <= 2 && len(c.job.Ranks) == 2 // a group of one rank is never waited for
}

// title is the name of a group for people.
func title(e torchdump.Entry) string {
	if e.Desc != "" && e.Desc != "undefined" {
		return e.Desc
	}
	return "group " + e.Group
}

func (c *analysis) lineOf(rank int, e torchdump.Entry) string {
	if e.Where != "" {
		return e.Where
	}
	return c.at[rank].place()
}

// group judges one group: who has not come to the oldest unfinished collective, or came with another one.
func (c *analysis) group(key string, opens map[int]open, last map[string]map[int]torchdump.Entry, members map[string][]int) (Verdict, bool) {
	var oldest open
	for _, o := range opens {
		if o.group == key && (oldest.group == "" || o.entry.Seq < oldest.entry.Seq) {
			oldest = o
		}
	}
	first, example := oldest.entry.Seq, oldest.entry
	var unseen []Rank
	var here, late, unsure []int
	differs, sizes, types, backends := map[string][]int{}, map[string][]int{}, map[string][]int{}, map[string]bool{}
	entries := map[int]torchdump.Entry{} // number first, of those who have come to it
	for _, r := range c.job.Ranks {
		if r.Gone != "" || members[key] != nil && !slices.Contains(members[key], r.Rank) {
			continue
		}
		switch {
		case r.Dump == nil && c.at[r.Rank].class != inProgram:
			unseen = append(unseen, r) // it may be in this collective
			continue
		case last[key][r.Rank].Seq < first && c.belongs(r.Rank, oldest, last, members):
			late = append(late, r.Rank)
			continue
		case last[key][r.Rank].Seq < first:
			unsure = append(unsure, r.Rank)
			continue
		}
		e, found := numberOf(r.Dump, key, first)
		if !found {
			continue
		}
		if o, waits := opens[r.Rank]; waits && o.group == key && o.entry.Seq == first {
			here = append(here, r.Rank)
		}
		entries[r.Rank] = e
		backends[e.Backend] = true
		differs[e.Op] = append(differs[e.Op], r.Rank)
		sizes[e.Op+e.Sizes] = append(sizes[e.Op+e.Sizes], r.Rank)
		types[e.Types] = append(types[e.Types], r.Rank)
	}
	numbered := fmt.Sprintf("%s number %d of %s", example.Op, first, title(example))
	as := fmt.Sprintf(" as number %d of %s", first, title(example))
	switch alike := !uneven[example.Op] && len(backends) == 1; { // others write sizes in their own way
	case len(late) > 0:
		return c.late(late, "not reached "+numbered, here), true
	case len(differs) > 1:
		return c.differ(differs, func(n int) string { return entries[n].Op + " (" + c.lineOf(n, entries[n]) + ")" }, as), true
	case len(sizes) > 1 && alike:
		return c.differ(sizes, func(n int) string { return entries[n].Op + " with " + entries[n].Sizes }, as), true
	case len(types) > 1 && alike:
		return c.differ(types, func(n int) string { return entries[n].Op + " of type " + strings.Trim(entries[n].Types, `[]"`) }, as), true
	case len(unsure) > 0:
		return c.late(unsure, "not reached "+numbered+", which only members of its group have to reach", here), true
	}
	if v, found := c.rooted(); found {
		return v, true
	}
	if slices.ContainsFunc(unseen, func(r Rank) bool { return r.atWork() }) {
		return Verdict{}, false // it is on its way
	}
	if v, found := c.communicators(); found { // NCCL knows of ranks that were not seen
		return v, true
	}
	if c.onlyGPU(here) {
		return Verdict{Still: true, Unseen: true, Sentence: fmt.Sprintf("%s %s for their GPUs, in %s, and have entered %s%s: perhaps hung; the GPUs may still compute what comes before it.",
			name(here), verb(here, "wait"), c.at[here[0]].where(), numbered, c.unseenOf(unseen, members[key]))}, len(here) > 1
	}
	same := ""
	if len(sizes) == 1 {
		same = " with the same sizes"
	}
	return Verdict{Sentence: fmt.Sprintf("%s in %s%s, and none makes progress%s: the network between them is stuck, or one of them died after it had entered.", is(here), numbered, same, c.unseenOf(unseen, members[key]))}, len(here) > 1
}

// unseenOf says which ranks of a group may not have entered what the others have: nothing is known of them. members are nil if all ranks are.
func (c *analysis) unseenOf(unread []Rank, members []int) string {
	ranks := slices.DeleteFunc(c.absent(), func(n int) bool { return members != nil && !slices.Contains(members, n) })
	for _, r := range unread {
		ranks = append(ranks, r.Rank)
	}
	if len(ranks) == 0 {
		return ""
	}
	slices.Sort(ranks)
	return "; of " + lower(name(ranks)) + " nothing is known"
}

// numberOf returns a collective of a group by its number, also one that is finished: NCCL can finish one that others have not entered.
func numberOf(d *torchdump.Dump, group string, seq int) (torchdump.Entry, bool) {
	if d == nil {
		return torchdump.Entry{}, false
	}
	for _, e := range d.Entries {
		if !e.P2P && e.Group == group && e.Seq == seq {
			return e, true
		}
	}
	return torchdump.Entry{}, false
}

// uneven are the collectives in which ranks may pass different sizes.
var uneven = map[string]bool{"gather": true, "scatter": true, "all_to_all": true, "all_to_all_single": true, "alltoall": true, "alltoall_base": true}
