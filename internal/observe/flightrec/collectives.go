// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// signature is what must be the same on all ranks for one sequence number.
type signature struct {
	op, reduce, dtype string
	size              int64 // -1 where ranks may give different sizes
	root              int
}

func signatureOf(e *Entry) signature {
	s := signature{op: e.Op, reduce: e.Reduce, dtype: e.DType, size: -1, root: e.Peer}
	switch e.Op {
	case "all_reduce", "all_reduce_coalesced", "reduce", "broadcast":
		s.size = max(e.In, e.Out)
	case "all_gather", "all_gather_into_tensor":
		s.size = e.Out
	case "reduce_scatter", "reduce_scatter_tensor":
		s.size = e.In
	}
	return s
}

// differences looks for the first collective that ranks called differently.
func (t *team) differences(g *groupDiagnosis) bool {
	for _, seq := range t.sequences() {
		kinds := map[signature][]*view{}
		for _, v := range t.present {
			if e := v.calls[seq]; e != nil {
				s := signatureOf(e)
				kinds[s] = append(kinds[s], v)
			}
		}
		switch {
		case len(kinds) > 1:
			t.explainDifference(g, seq, kinds)
			return true
		case len(kinds) == 1 && t.sums(g, seq):
			return true
		}
	}
	return false
}

// sequences are the numbers of all collectives that at least two ranks remember, in order.
func (t *team) sequences() []uint64 {
	count := map[uint64]int{}
	var all []uint64
	for _, v := range t.present {
		for seq := range v.calls {
			if count[seq]++; count[seq] == 2 {
				all = append(all, seq)
			}
		}
	}
	slices.Sort(all)
	return all
}

// explainDifference reports which rank called what. Where most ranks agree, the others are the ones to look at.
func (t *team) explainDifference(g *groupDiagnosis, seq uint64, kinds map[signature][]*view) {
	sides := make([][]*view, 0, len(kinds))
	for _, side := range kinds {
		sides = append(sides, side)
	}
	slices.SortFunc(sides, func(a, b []*view) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0].Rank, b[0].Rank))
	})
	g.Finding = OutOfStep
	var calls []string
	for _, side := range sides[:min(len(sides), 3)] {
		ranks := globalsOf(side)
		calls = append(calls, ranksText(ranks)+" "+verb(ranks, "calls", "call")+" "+side[0].calls[seq].text(&t.About))
	}
	text := fmt.Sprintf("operation #%d is different: %s", seq, strings.Join(calls, ", "))
	if n := len(sides) - 3; n > 0 {
		text += fmt.Sprintf(" and %d more kind%s", n, more(n))
	}
	minority := sides
	if len(sides[0]) > len(sides[1]) {
		minority = sides[1:]
	}
	for _, side := range minority {
		g.Ranks = append(g.Ranks, globalsOf(side)...)
	}
	if len(minority) < len(sides) {
		slices.Sort(g.Ranks)
		text += "; " + ranksText(g.Ranks) + " " + verb(g.Ranks, "is", "are") + " out of step"
		text += shifted(seq, sides[0][0], minority[0][0])
	}
	g.Sentence = text
}

// shifted guesses a call too many or too few on the odd side.
func shifted(seq uint64, most, odd *view) string {
	same := func(a, b *Entry) bool { return a != nil && b != nil && signatureOf(a) == signatureOf(b) }
	switch {
	case same(odd.calls[seq], most.calls[seq+1]):
		return ", probably one " + most.calls[seq].Op + " short"
	case same(odd.calls[seq+1], most.calls[seq]):
		return ", probably with one " + odd.calls[seq].Op + " too many"
	}
	return ""
}

// sums checks operations whose parts may differ from rank to rank but must add up. It needs all ranks.
func (t *team) sums(g *groupDiagnosis, seq uint64) bool {
	if len(t.missing) > 0 {
		return false
	}
	var in, out int64
	root := -1
	op := ""
	for _, v := range t.present {
		e := v.calls[seq]
		if e == nil {
			return false
		}
		in, out, op, root = in+e.In, out+e.Out, e.Op, e.Peer
	}
	switch op {
	case "gather", "scatter", "all_to_all", "all_to_all_single":
	default:
		return false
	}
	if in == out {
		return false
	}
	g.Finding = OutOfStep
	g.Sentence = fmt.Sprintf("%s #%d does not add up: the ranks give %s and expect %s in all", op, seq, Bytes(in), Bytes(out))
	if root >= 0 {
		g.Ranks = []int{t.globalOf(root)}
		g.Sentence += fmt.Sprintf("; look at root %d first", t.globalOf(root))
	}
	return true
}

// absence looks for the first collective in which a rank waits and which another never entered.
func (t *team) absence(g *groupDiagnosis) bool {
	seq, waiting := t.firstOpen()
	if len(waiting) == 0 {
		return false
	}
	var late []*view
	for _, v := range t.present {
		if v.Status.LastPosted < int64(seq) && v.calls[seq] == nil { //nolint:gosec // sequence numbers are small
			late = append(late, v)
		}
	}
	if len(late)+len(t.missing) == 0 {
		return false
	}
	wait := fmt.Sprintf("%s %s in %s", ranksText(globalsOf(waiting)), verb(globalsOf(waiting), "waits", "wait"),
		waiting[0].calls[seq].text(&t.About))
	wait += " for " + span(longest(waiting, seq))
	if len(t.missing) > 0 {
		// Who is late on its side may well be so because of the missing one.
		g.Finding, g.Ranks = MissingRank, t.globals(t.missing)
		g.Sentence = fmt.Sprintf("%s gave no dump%s: %s", ranksText(g.Ranks), t.foreign(), wait)
		if len(late) > 0 {
			g.Sentence += ", and " + t.lateness(late, seq)
		}
		return true
	}
	g.Finding, g.Ranks = LateRank, globalsOf(late)
	g.Sentence = t.lateness(late, seq) + ": " + wait + tooEarly(late, waiting, seq)
	return true
}

// foreign reminds of ranks that have no recorder.
func (t *team) foreign() string {
	if t.Transport == "gloo" {
		return " (dead, or a PyTorch process, which writes none)"
	}
	return " (dead or cut off)"
}

// lateness names the ranks that never entered an operation and what the first of them did instead.
func (t *team) lateness(late []*view, seq uint64) string {
	ranks := globalsOf(late)
	text := fmt.Sprintf("%s never entered #%d", ranksText(ranks), seq)
	v := late[0]
	who := "it"
	if len(late) > 1 {
		who = fmt.Sprintf("rank %d", v.global)
	}
	switch {
	case len(v.open) > 0 && v.open[0].P2P:
		text += fmt.Sprintf(" (%s is in %s for %s)", who, v.open[0].text(&t.About), span(v.age(v.open[0])))
	case v.Status.LastPosted < 0:
		text += fmt.Sprintf(" (%s has entered nothing at all)", who)
	default:
		last := v.calls[uint64(v.Status.LastPosted)]
		if last == nil {
			break
		}
		text += fmt.Sprintf(" (%s last entered %s", who, last.label())
		if last.State == Completed && !last.Ended.IsZero() {
			text += ", complete for " + span(max(0, v.taken.Sub(last.Ended)))
		}
		text += ")"
	}
	return text
}

// tooEarly warns when the late ranks' dumps are older than the wait.
func tooEarly(late, waiting []*view, seq uint64) string {
	entered := waiting[0].calls[seq].Posted
	for _, v := range waiting {
		if p := v.calls[seq].Posted; p.Before(entered) {
			entered = p
		}
	}
	var old []int
	for _, v := range late {
		if v.taken.Before(entered) {
			old = append(old, v.global)
		}
	}
	if len(old) == 0 {
		return ""
	}
	return fmt.Sprintf("; but the dump of %s is older than that: take all dumps at one time", ranksText(old))
}

// firstOpen is the earliest collective that is not complete somewhere, with the ranks on which it is not.
func (t *team) firstOpen() (seq uint64, waiting []*view) {
	found := false
	for _, v := range t.present {
		if e := v.openCall(); e != nil && (!found || e.Seq < seq) {
			seq, found = e.Seq, true
		}
	}
	if !found {
		return 0, nil
	}
	for _, v := range t.present {
		if e := v.calls[seq]; e != nil && e.State != Completed {
			waiting = append(waiting, v)
		}
	}
	return seq, waiting
}

// progress describes a group in which all ranks have entered what the others wait in.
func (t *team) progress(g *groupDiagnosis) bool {
	if seq, waiting := t.firstOpen(); len(waiting) > 0 {
		t.unfinished(g, seq, waiting)
		return true
	}
	least, most := t.present[0], t.present[0]
	for _, v := range t.present {
		if v.Status.LastPosted < least.Status.LastPosted {
			least = v
		}
		if v.Status.LastPosted > most.Status.LastPosted {
			most = v
		}
	}
	switch {
	case least.Status.LastPosted != most.Status.LastPosted:
		var behind []*view
		for _, v := range t.present {
			if v.Status.LastPosted < most.Status.LastPosted {
				behind = append(behind, v)
			}
		}
		g.Finding, g.Ranks = Behind, globalsOf(behind)
		g.Sentence = fmt.Sprintf("%s %s behind, at #%d while rank %d is at #%d, but no rank waits", ranksText(g.Ranks),
			verb(g.Ranks, "is", "are"),
			least.Status.LastPosted, most.global, most.Status.LastPosted)
	case len(t.missing) > 0:
		g.Finding, g.Ranks = NoDump, t.globals(t.missing)
		g.Sentence = fmt.Sprintf("%s gave no dump%s, and the others are in step and wait for nothing", ranksText(g.Ranks), t.foreign())
	default:
		g.Finding = InStep
		g.Sentence = fmt.Sprintf("all %d ranks are in step", t.Size)
		if t.Size == 1 {
			g.Sentence = "the only rank waits for nothing"
		}
		if e := most.calls[uint64(max(0, most.Status.LastPosted))]; e != nil {
			g.Sentence += ": " + e.label() + " is complete and nothing is posted"
		} else if most.Status.LastPosted < 0 {
			g.Sentence += ": no collective was posted yet"
		}
	}
	return true
}

// unfinished describes a collective that all ranks have entered.
func (t *team) unfinished(g *groupDiagnosis, seq uint64, waiting []*view) {
	g.Finding, g.Ranks = Unfinished, globalsOf(waiting)
	first := waiting[0].calls[seq]
	failed := ""
	for _, v := range waiting {
		if e := v.calls[seq]; e.State == Failed {
			failed = fmt.Sprintf("; on rank %d it failed: %s", v.global, e.Err)
			break
		}
	}
	age := span(longest(waiting, seq))
	switch {
	case len(waiting) == len(t.present) && failed != "":
		g.Sentence = fmt.Sprintf("all ranks entered %s, and it failed after %s%s", first.text(&t.About), age, failed)
	case len(waiting) == len(t.present):
		g.Sentence = fmt.Sprintf("all ranks are in step, in %s for %s", first.text(&t.About), age)
		if queued := t.queued(waiting, seq); len(queued) > 0 {
			g.Ranks = queued
			g.Sentence += "; " + ranksText(queued) + " " + verb(queued, "has", "have") + " posted it but not started it"
		}
	default:
		g.Sentence = fmt.Sprintf("%s %s not finished %s, in it for %s, while the others have%s", ranksText(g.Ranks),
			verb(g.Ranks, "has", "have"),
			first.text(&t.About), age, failed)
	}
}

// queued are the ranks that have posted an operation which others have started.
func (t *team) queued(waiting []*view, seq uint64) []int {
	var queued []*view
	for _, v := range waiting {
		if v.calls[seq].State == Posted {
			queued = append(queued, v)
		}
	}
	if len(queued) == len(waiting) {
		return nil
	}
	return globalsOf(queued)
}

func longest(waiting []*view, seq uint64) time.Duration {
	var d time.Duration
	for _, v := range waiting {
		d = max(d, v.age(v.calls[seq]))
	}
	return d
}

func globalsOf(views []*view) []int {
	ranks := make([]int, len(views))
	for i, v := range views {
		ranks[i] = v.global
	}
	slices.Sort(ranks)
	return ranks
}
