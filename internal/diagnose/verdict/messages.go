// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
)

// messages: a rank waits for a message that no rank sends. Where its peer itself waits for a message from a third rank, that says more.
func (c *analysis) messages() (Verdict, bool) {
	var chained *Verdict
	for _, r := range c.job.Ranks {
		p := c.at[r.Rank]
		if r.Gone != "" || r.Moved || p.class != inMessage || p.peer < 0 || p.peer == r.Rank {
			continue
		}
		peer, q := c.rank(p.peer), c.at[p.peer]
		verb := "waits for a message from"
		lacks, come := "is in "+q.where()+" and sends none", "none has arrived"
		if p.op == "send" {
			verb, lacks, come = "sends a message to", "is in "+q.where()+" and does not receive it", "it has not been received"
		}
		switch { // it may have sent one that does not match, or be about to take this one
		case q.class == inWork:
			lacks = "waits in " + q.where() + " for an operation that was started earlier, and " + come
		case q.class != inProgram && q.class != inMessage:
			lacks = "is in " + q.where() + ", and " + come
		}
		switch {
		case peer == nil || peer.Gone != "":
			continue
		case q.class == inMessage && q.op == p.op && (q.peer == r.Rank || q.peer < 0 && q.side == ""):
			return Verdict{
				Culprits: []int{r.Rank, p.peer},
				Sentence: fmt.Sprintf("Ranks %d and %d wait for each other: both are in %s (%s).", r.Rank, p.peer, p.op,
					c.lines([]int{r.Rank, p.peer})),
			}, true
		case q.class == inMessage && q.peer == r.Rank:
			continue // the message may be on its way
		case len(c.ring(r.Rank)) > 2:
			ring := c.ring(r.Rank)
			return Verdict{
				Culprits: ring,
				Sentence: fmt.Sprintf(
					"%s wait for each other in a cycle: each is in %s (%s) with the next; reverse the order in one of them, or use "+
						"batch_isend_irecv.", name(ring), p.op, p.line),
			}, true
		case q.class == inMessage && q.peer >= 0 && !peer.Moved &&
			(p.op == "send" && q.op == "recv" || q.op == "send" && c.at[q.peer].class == inMessage && c.at[q.peer].peer == p.peer):
			continue // it waits for another one: that says more
		}
		v := Verdict{
			Culprits: []int{p.peer},
			Sentence: fmt.Sprintf("Rank %d %s rank %d (%s), which %s", r.Rank, verb, p.peer, p.line, lacks),
		}
		if senders := c.ranks(func(_ Rank, s position) bool { return s.op == "send" && s.peer == r.Rank }); p.op == "recv" &&
			len(senders) > 0 {
			v.Culprits = []int{r.Rank}
			v.Sentence += fmt.Sprintf("; %s a message to rank %d (%s): is src right?", sends(senders), r.Rank, c.at[senders[0]].line)
			return v, true
		}
		v.Sentence += "."
		if q.class != inMessage || q.op != p.op || q.peer < 0 {
			return v, true
		}
		if chained == nil {
			chained = &v
		}
	}
	if chained == nil {
		return Verdict{}, false
	}
	return *chained, true
}

// ring returns the ranks that stand in the same kind of message call, each with the next and the last with the first; nil
// if the ranks from there on form no ring.
func (c *analysis) ring(from int) []int {
	var all []int
	for n := from; ; n = c.at[n].peer {
		r, p := c.rank(n), c.at[n]
		if r == nil || r.Gone != "" || r.Moved || p.class != inMessage || p.op != c.at[from].op {
			return nil
		}
		if slices.Contains(all, n) {
			if n != from {
				return nil
			}
			slices.Sort(all)
			return all
		}
		all = append(all, n)
	}
}

// unmatched: nothing moves, and a message does not find its receiver.
func (c *analysis) unmatched() (Verdict, bool) {
	if moving := c.ranks(func(r Rank, _ position) bool { return r.atWork() }); len(moving) > 0 {
		return Verdict{}, false
	}
	none := "none"
	if len(c.absent()) > 0 {
		none = "none of those that were seen"
	}
	for _, n := range c.still(inMessage) {
		p := c.at[n]
		q, known := c.at[p.peer]
		switch {
		case p.op == "recv" && p.peer < 0 && p.side == "":
			return Verdict{
				Culprits: slices.DeleteFunc(c.all(), func(m int) bool { return m == n }),
				Sentence: fmt.Sprintf("Rank %d waits for a message from any rank (%s)%s, and %s sends one: %s.", n, p.line,
					since(c.rank(n).Idle), none, c.whereabouts(n)),
			}, true
		case p.op == "send" && known && q.op == "recv" && q.peer == n:
			text := "are both calls in the same group?"
			if p.tag != q.tag {
				text = fmt.Sprintf("it has tag %s, and rank %d waits for tag %s.", p.tag, p.peer, q.tag)
			}
			return Verdict{
				Culprits: []int{n, p.peer},
				Sentence: fmt.Sprintf(
					"Rank %d sends a message to rank %d (%s), which waits for one from rank %d (%s)%s, and it does not arrive: %s",
					n, p.peer, p.line, n, q.line, since(c.rank(n).Idle), text),
			}, true
		}
	}
	return Verdict{}, false
}
