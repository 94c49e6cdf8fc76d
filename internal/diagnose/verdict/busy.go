// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// busy: no rank waits for another.
func (c *analysis) busy() Verdict {
	if len(c.all()) == 0 {
		return Verdict{Sentence: "Not hung: all ranks that were found have exited."}
	}
	moving := c.ranks(func(r Rank, _ position) bool { return r.atWork() })
	unread := c.ranks(func(r Rank, _ position) bool { return r.Main == nil })
	if len(unread) == len(c.all()) {
		text := "No Python stack could be read"
		if len(moving) > 0 {
			text = is(moving) + " at work, but no Python stack could be read"
		}
		if t := c.rank(unread[0]).Trouble; t != "" {
			text += ": " + t
		}
		return Verdict{Sentence: text + "."}
	}
	if len(moving) > 0 {
		return Verdict{Sentence: c.atWork(moving)}
	}
	for _, r := range c.job.Ranks {
		if r.Gone != "" && r.Gone != Succeeded {
			return Verdict{
				Culprits: []int{r.Rank}, Hung: true,
				Sentence: fmt.Sprintf("Rank %d %s; of the others no rank waits in torch.distributed: %s.", r.Rank, r.Gone,
					c.whereabouts(-1)),
			}
		}
	}
	switch {
	case len(c.waiting()) > 0:
		return Verdict{Hung: true, Sentence: fmt.Sprintf("No rank makes progress: %s.", c.whereabouts(-1))}
	case c.asleep():
		return Verdict{Hung: true, Sentence: fmt.Sprintf("No rank waits in torch.distributed: %s.", c.whereabouts(-1))}
	}
	return Verdict{Still: true, Sentence: fmt.Sprintf(perhaps+"no rank waits in torch.distributed; %s.", c.whereabouts(-1))}
}

// atWork says what the ranks do that move, and who waits meanwhile.
func (c *analysis) atWork(moving []int) string {
	r, p := c.rank(moving[0]), c.at[moving[0]]
	text := fmt.Sprintf("Not hung: %s at work, in %s", lower(is(moving)), p.where())
	if places := c.grouped(moving, position.where); len(places) > 1 {
		text = fmt.Sprintf("Not hung: %s at work: %s", lower(is(moving)), strings.Join(places, ", "))
	} else if r.Main != nil && len(r.Main.Frames) == 0 {
		text = fmt.Sprintf("Not hung: %s starting or exiting", lower(is(moving)))
		if r.Ending {
			text = fmt.Sprintf("Not hung: %s exiting", lower(is(moving)))
		}
		if r.Raised != "" {
			who := "it"
			if len(moving) > 1 {
				who = "rank " + strconv.Itoa(r.Rank)
			}
			text += "; the last thing " + who + " printed is " + r.Raised
		}
	}
	waiting := slices.DeleteFunc(c.waiting(), func(n int) bool { return slices.Contains(moving, n) })
	switch {
	case len(waiting) > 0:
		text += "; " + c.waitIn(waiting)
	case p.op != "" || p.own != "":
		text += ", and no rank waits in torch.distributed"
	}
	return text + c.slowest() + c.ended() + "."
}

// ended says which ranks have exited, or do not run.
func (c *analysis) ended() string {
	var text strings.Builder
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			fmt.Fprintf(&text, "; rank %d %s", r.Rank, r.Gone)
		}
	}
	if absent := c.absent(); c.job.Local && len(absent) > 0 {
		fmt.Fprintf(&text, "; %s not running", lower(is(absent)))
	}
	return text.String()
}

// whereabouts says where the ranks, but for one, are whose stacks could be read, those of one place together.
func (c *analysis) whereabouts(but int) string {
	all := c.ranks(func(r Rank, _ position) bool { return r.Main != nil && r.Rank != but })
	places := c.grouped(all, position.doing)
	if i := slices.IndexFunc(all, func(n int) bool { return slices.ContainsFunc(c.rank(n).Children, Child.stuck) }); i > 0 {
		all[0] = all[i] // it says more
	}
	for _, n := range all {
		if text, found := strings.CutPrefix(childText(c.rank(n).Children), ","); found {
			return strings.Join(places, "; ") + "; rank " + strconv.Itoa(n) + " waits" + text // one says enough
		}
	}
	return strings.Join(places, "; ")
}

// waitIn says where ranks wait, those of one place together.
func (c *analysis) waitIn(ranks []int) string {
	var parts []string
	for len(ranks) > 0 {
		where := c.at[ranks[0]].where()
		elsewhere := func(n int) bool { return c.at[n].where() != where }
		parts = append(parts, waits(slices.DeleteFunc(slices.Clone(ranks), elsewhere))+" in "+where)
		ranks = slices.DeleteFunc(slices.Clone(ranks), func(n int) bool { return !elsewhere(n) })
	}
	return strings.Join(parts, ", ")
}

// grouped says where ranks are, those of one place together, and no more than four places.
func (c *analysis) grouped(ranks []int, say func(position) string) []string {
	var order, parts []string
	by := map[string][]int{}
	for _, n := range ranks {
		where := say(c.at[n])
		if by[where] == nil {
			order = append(order, where)
		}
		by[where] = append(by[where], n)
	}
	const most = 4
	for _, where := range order[:min(len(order), most)] {
		n := by[where]
		part := fmt.Sprintf("%s in %s%s", lower(is(n)), where, c.spent(n[0])+c.alsoSays(n))
		if raised := c.rank(n[0]).Raised; raised != "" && len(n) == 1 {
			part += "; the last thing it printed is " + raised
		}
		parts = append(parts, part)
	}
	if more := len(order) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("the others at %d more places", more))
	}
	return parts
}

// leftKeys says that the store is not that of this attempt alone.
func (c *analysis) leftKeys() []string {
	if !c.job.OldKeys {
		return nil
	}
	return []string{"the store at " + c.job.Store + " still has keys from an earlier attempt"}
}

// waits lists who waits for which key.
func (c *analysis) waits() []string {
	var out []string
	for _, w := range c.job.Waits[:min(len(c.job.Waits), 8)] {
		who := "a client"
		if w.Rank >= 0 {
			who = "rank " + strconv.Itoa(w.Rank)
		}
		out = append(out, fmt.Sprintf("%s has waited for the key %s in the store for %s", who, w.Key, w.Age.Round(100*time.Millisecond)))
	}
	return out
}

const (
	// latest is how many collectives of a group are compared, and leastLag what a rank that is slow comes later than the others.
	latest   = 8
	leastLag = 10 * time.Millisecond
)

// slowest says which rank has come last to the latest collectives of a group, if it was the same one each time: a job that does not
// hang is as fast as this rank. Recorders of different hosts are not compared, as their clocks differ.
func (c *analysis) slowest() string {
	unknown := func(r Rank) bool { return r.Gone == "" && r.Dump == nil }
	if len(c.job.Ranks) < c.job.World || slices.ContainsFunc(c.job.Ranks, unknown) {
		return "" // that one may have come later
	}
	arrivals := map[string]map[int]map[int]int64{} // by group, number and rank
	titles, ranks := map[string]string{}, map[string]map[int]bool{}
	host := ""
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			continue
		}
		if host != "" && r.Host != host {
			return ""
		}
		host = r.Host
		for _, e := range r.Dump.Entries {
			if e.P2P || e.Created == 0 {
				continue
			}
			if arrivals[e.Group] == nil {
				arrivals[e.Group], ranks[e.Group], titles[e.Group] = map[int]map[int]int64{}, map[int]bool{}, title(e)
			}
			if arrivals[e.Group][e.Seq] == nil {
				arrivals[e.Group][e.Seq] = map[int]int64{}
			}
			arrivals[e.Group][e.Seq][r.Rank] = e.Created
			ranks[e.Group][r.Rank] = true
		}
	}
	for _, group := range slices.Sorted(maps.Keys(arrivals)) {
		var all []map[int]int64 // of the latest that all ranks have come to
		for _, seq := range slices.Backward(slices.Sorted(maps.Keys(arrivals[group]))) {
			if times := arrivals[group][seq]; len(times) == len(ranks[group]) && len(times) > 1 && len(all) < latest {
				all = append(all, times)
			}
		}
		if rank, by := lastOf(all); len(all) == latest && by >= leastLag {
			return fmt.Sprintf("; rank %d came last to each of the last %d collectives of %s, at least %s after the others", rank,
				latest, titles[group], by.Round(time.Millisecond))
		}
	}
	return ""
}

// lastOf returns the rank that came last each time, and by how much at least; 0 if it was not always the same.
func lastOf(all []map[int]int64) (rank int, by time.Duration) {
	for i, times := range all {
		order := slices.SortedFunc(maps.Keys(times), func(a, b int) int { return cmp.Compare(times[b], times[a]) })
		lag := time.Duration(times[order[0]] - times[order[1]])
		if i > 0 && order[0] != rank {
			return 0, 0
		}
		if rank = order[0]; i == 0 || lag < by {
			by = lag
		}
	}
	return rank, by
}
