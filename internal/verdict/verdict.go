// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package verdict says in one sentence why a job hangs, with the evidence. It is pure: it takes what was observed of the
// ranks and returns sentences.
package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/frdump"
	"github.com/cohort-dist/cohort/internal/pystack"
)

// Succeeded is what Gone says of a rank that has ended well.
const Succeeded = "has ended with exit code 0"

// Rank is what was seen of a rank.
type Rank struct {
	Rank int
	Host string
	PID  int
	// Gone says how the rank ended, "" if it runs: "was killed by SIGKILL".
	Gone string
	// State is the scheduler's state of the process: R, S, D, T.
	State string
	// Threads are its Python threads, Main the main one; nil if it is no Python or could not be read.
	Threads []pystack.Thread
	Main    *pystack.Thread
	// Moved says that the main thread did something between two readings.
	Moved bool
	// Idle is how long the main thread has not run; 0: not known.
	Idle time.Duration
	// Dump is its flight recorder, or nil.
	Dump *frdump.Dump
	// Line is the text of the line of the program that the main thread has come to, "" if it is not known.
	Line string
	// Raised is the exception that it has printed last, "" if it has printed something else since, or none.
	Raised string
	// Children are processes below it that run code of the program or other programs: data loader workers, for instance.
	Children []Child
	// LostChildren says that a child of it has ended and was not waited for.
	LostChildren bool
	// Trouble says why something could not be read.
	Trouble string
}

// Child is a process below a rank.
type Child struct {
	PID int
	// Command is the name of its program.
	Command string
	// Frames are the calls of its main thread, as far as they are its own: a child that was forked has those of its parent, too.
	Frames []pystack.Frame
	// Kernel is the function of the kernel that it sleeps in.
	Kernel string
}

// Wait is a client of the job's store that waits for a key.
type Wait struct {
	Key  string
	Rank int // -1: not known
	Age  time.Duration
}

// Job is what was seen of a job.
type Job struct {
	// World is WORLD_SIZE; 0: not known. Local says that all ranks run on this host.
	World int
	Local bool
	Ranks []Rank
	Waits []Wait
	// Store is the store's address, and StoreTrouble why it cannot be reached; "" if it can.
	Store, StoreTrouble string
	// Taken is when it was seen; zero: not known.
	Taken time.Time
}

// Verdict is the answer.
type Verdict struct {
	// Sentence says why the job stands still, or that it does not.
	Sentence string `json:"sentence"`
	// Hung says that it stands still.
	Hung bool `json:"hung"`
	// Culprits are the ranks that the others wait for.
	Culprits []int `json:"culprits,omitempty"`
	// Proof are the facts behind the sentence, a line each.
	Proof []string `json:"proof,omitempty"`
	// Places say where each rank is: the part of the proof that stays the same while nothing moves.
	Places []string `json:"-"`
}

// Judge looks at a job.
func Judge(j Job) Verdict {
	slices.SortFunc(j.Ranks, func(a, b Rank) int { return a.Rank - b.Rank })
	j.Ranks = withoutChildren(j.Ranks)
	c := &court{job: j, at: map[int]position{}}
	for _, r := range j.Ranks {
		c.at[r.Rank] = locate(r)
	}
	v := c.judge()
	v.Places = c.places()
	v.Proof = slices.Concat(v.Places, c.waits())
	return v
}

// withoutChildren leaves out a second process of a rank that takes no part: a child that has lost its parent, for
// instance. Where both take part, both stay.
func withoutChildren(ranks []Rank) []Rank {
	var out []Rank
	for _, r := range ranks {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Rank != r.Rank || locate(out[last]).waits() && locate(r).waits():
			out = append(out, r)
		case locate(r).waits() && !locate(out[last]).waits():
			out[last] = r
		}
	}
	return out
}

// court holds a job and where its ranks are.
type court struct {
	job Job
	at  map[int]position
}

func (c *court) judge() Verdict {
	if len(c.job.Ranks) == 0 {
		return c.fromStore()
	}
	for _, rule := range []func() (Verdict, bool){
		c.gone, c.twice, c.stopped, c.kernel, c.unreachable, c.lock, c.recorders, c.messages, c.starting, c.rpc, c.missing, c.mismatch, c.same, c.store,
	} {
		if v, found := rule(); found {
			v.Hung = true
			return v
		}
	}
	return c.busy()
}

// fromStore judges a job of which only the store was seen.
func (c *court) fromStore() Verdict {
	known := map[int]bool{}
	for _, w := range c.job.Waits {
		if w.Rank >= 0 {
			known[w.Rank] = true
		}
	}
	if v, found := c.keys(slices.Sorted(maps.Keys(known))); found {
		v.Hung = true
		return v
	}
	if n := len(c.job.Waits); n > 0 {
		return Verdict{Sentence: fmt.Sprintf("No rank of this job was found, but %s in its store, the oldest for the key %s%s.", map[bool]string{true: "1 request waits", false: strconv.Itoa(n) + " requests wait"}[n == 1], c.job.Waits[0].Key, since(c.job.Waits[0].Age))}
	}
	return Verdict{Sentence: "No rank of this job was found, and nobody waits in its store."}
}

// ranks returns the ranks whose position satisfies want.
func (c *court) ranks(want func(Rank, position) bool) []int {
	var all []int
	for _, r := range c.job.Ranks {
		if r.Gone == "" && want(r, c.at[r.Rank]) {
			all = append(all, r.Rank)
		}
	}
	return all
}

func (c *court) rank(n int) *Rank {
	for i := range c.job.Ranks {
		if c.job.Ranks[i].Rank == n {
			return &c.job.Ranks[i]
		}
	}
	return nil
}

// waiting returns the ranks that stand still in a call that waits for others.
func (c *court) waiting() []int {
	return c.ranks(func(r Rank, p position) bool { return p.waits() && (!r.Moved || p.class <= inNewGroup) })
}

// still returns the ranks that stand still in a class of calls.
func (c *court) still(in ...class) []int {
	return c.ranks(func(r Rank, p position) bool { return slices.Contains(in, p.class) && !r.Moved })
}

// gone: a rank has ended while others wait.
func (c *court) gone() (Verdict, bool) {
	waiting := c.waiting()
	if len(waiting) == 0 {
		return Verdict{}, false
	}
	for _, r := range c.job.Ranks {
		if r.Gone != "" {
			return Verdict{
				Culprits: []int{r.Rank},
				Sentence: fmt.Sprintf("Rank %d %s; %s.", r.Rank, r.Gone, waits(waiting)),
			}, true
		}
	}
	if !c.job.Local || c.job.World == 0 {
		return Verdict{}, false
	}
	var absent []int
	for n := range min(c.job.World, 1<<16) {
		if c.rank(n) == nil {
			absent = append(absent, n)
		}
	}
	if len(absent) == 0 {
		return Verdict{}, false
	}
	return Verdict{
		Culprits: absent,
		Sentence: fmt.Sprintf("%s not running: %s of a world of %d was found; %s.", is(absent), lower(name(c.all())), c.job.World, waits(waiting)),
	}, true
}

func (c *court) all() []int { return c.ranks(func(Rank, position) bool { return true }) }

// twice: two processes are the same rank, and both take part.
func (c *court) twice() (Verdict, bool) {
	for i := 1; i < len(c.job.Ranks); i++ { // they are sorted
		a, b := c.job.Ranks[i-1], c.job.Ranks[i]
		if a.Rank != b.Rank || a.Gone != "" || b.Gone != "" || !locate(a).waits() || !locate(b).waits() {
			continue
		}
		return Verdict{
			Culprits: []int{a.Rank},
			Sentence: fmt.Sprintf("Rank %d was started twice, as the processes %d and %d: give each process a RANK of its own, from 0 to %d.", a.Rank, a.PID, b.PID, max(c.job.World, 1)-1),
		}, true
	}
	return Verdict{}, false
}

// rpc: some ranks are at a meeting of RPC to which others have not come.
func (c *court) rpc() (Verdict, bool) {
	for _, op := range []string{"init_rpc", "shutdown"} {
		here := c.ranks(func(_ Rank, p position) bool { return p.class == inRPC && p.op == op })
		late := c.ranks(func(r Rank, p position) bool { return r.Main != nil && (p.class != inRPC || p.op != op) })
		if len(here) > 0 && len(late) > 0 {
			return c.late(late, "not called rpc."+op+" ("+c.at[here[0]].line+")", here), true
		}
	}
	return Verdict{}, false
}

// messages: a rank waits for a message that nobody sends.
func (c *court) messages() (Verdict, bool) {
	for _, r := range c.job.Ranks {
		p := c.at[r.Rank]
		if r.Gone != "" || r.Moved || p.class != inMessage || p.peer < 0 || p.peer == r.Rank {
			continue
		}
		peer, q := c.rank(p.peer), c.at[p.peer]
		verb := "waits for a message of"
		lacks := "and sends none"
		if p.op == "send" {
			verb, lacks = "has a message for", "and does not take it"
		}
		switch {
		case peer == nil || peer.Gone != "":
			continue
		case q.class == inMessage && q.op == p.op && (q.peer == r.Rank || q.peer < 0):
			return Verdict{
				Culprits: []int{r.Rank, p.peer},
				Sentence: fmt.Sprintf("Ranks %d and %d wait for each other: both are in %s (%s and %s).", r.Rank, p.peer, p.op, p.line, q.line),
			}, true
		case q.class == inMessage && q.peer == r.Rank:
			continue // the message is on its way
		case len(c.ring(r.Rank)) > 2:
			ring := c.ring(r.Rank)
			return Verdict{
				Culprits: ring,
				Sentence: fmt.Sprintf("%s wait for each other in a ring: each is in %s (%s) with the next; let one of them do the opposite first, or use batch_isend_irecv.", name(ring), p.op, p.line),
			}, true
		case p.op == "send" && q.class == inMessage && q.op == "recv" && q.peer >= 0 && !peer.Moved:
			continue // it waits for another one: that says more
		}
		v := Verdict{
			Culprits: []int{p.peer},
			Sentence: fmt.Sprintf("Rank %d %s rank %d (%s), which is in %s %s", r.Rank, verb, p.peer, p.line, q.where(), lacks),
		}
		if senders := c.ranks(func(_ Rank, s position) bool { return s.op == "send" && s.peer == r.Rank }); p.op == "recv" && len(senders) > 0 {
			v.Culprits = []int{r.Rank}
			v.Sentence += fmt.Sprintf("; %s a message for it (%s): is src right?", lower(name(senders))+" "+has(senders), c.at[senders[0]].line)
			return v, true
		}
		v.Sentence += "."
		return v, true
	}
	return Verdict{}, false
}

// ring returns the ranks that stand in the same kind of message call, each with the next and the last with the first; nil
// if there is no such ring from a rank on.
func (c *court) ring(from int) []int {
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

// starting: some ranks set up a group that others have not come to.
func (c *court) starting() (Verdict, bool) {
	for _, step := range []class{inInit, inNewGroup} {
		here := c.ranks(func(_ Rank, p position) bool { return p.class == step }) // it asks the store again and again, and so moves
		if len(here) == 0 {
			continue
		}
		late := c.ranks(func(_ Rank, p position) bool { return p.class != step && p.class <= inNewGroup })
		call := c.at[here[0]].op
		if len(late) > 0 {
			return c.late(late, "not called "+call, here), true
		}
		if v, found := c.keys(here); found {
			return v, true
		}
		if past := c.still(inMessage, inCollective); step == inNewGroup && len(past) > 0 {
			return Verdict{Culprits: past, Sentence: fmt.Sprintf("%s %s in %s where %s %s %s (%s): every rank must call new_group, also one that is not to be in the group.",
				name(past), map[bool]string{true: "is", false: "are"}[len(past) == 1], c.at[past[0]].where(), lower(name(here)), verb(here, "call"), call, c.at[here[0]].line)}, true
		}
		if len(here) == 1 {
			return Verdict{Sentence: fmt.Sprintf("%s in %s (%s) and waits for others%s.", is(here), call, c.at[here[0]].line, since(c.rank(here[0]).Idle))}, true
		}
		return Verdict{Sentence: fmt.Sprintf("%s in %s (%s) and wait for each other%s.", is(here), call, c.at[here[0]].line, since(c.rank(here[0]).Idle))}, true
	}
	return Verdict{}, false
}

// late says that ranks have not done what others wait for.
func (c *court) late(late []int, what string, waiting []int) Verdict {
	places := map[string]bool{}
	for _, n := range late {
		places[c.at[n].where()] = true
	}
	text := "; they are in " + strings.Join(sorted(places), ", ")
	if len(late) == 1 || len(places) == 1 {
		text = "; " + pronoun(late) + " in " + c.at[late[0]].doing() + since(c.rank(late[0]).Idle) + c.because(late[0])
	}
	if c.at[late[0]].op == "" && c.at[late[0]].own == "" {
		text = ""
	}
	return Verdict{Culprits: late, Sentence: fmt.Sprintf("%s %s %s%s; %s%s.", name(late), has(late), what, text, waits(waiting), since(c.waited(waiting)))}
}

// missing: some ranks are in a collective and others are not.
func (c *court) missing() (Verdict, bool) {
	here := c.still(inCollective)
	late := c.ranks(func(r Rank, p position) bool {
		return p.class != inCollective && p.class != inWork && (r.Main != nil || p.class != unknown)
	})
	if len(here) > 0 && len(late) > 0 {
		return c.late(late, "not reached "+c.at[here[0]].op+" ("+c.at[here[0]].line+")", here), true
	}
	work := c.still(inWork)
	switch {
	case len(work) == 0:
		return Verdict{}, false
	case len(late) == 0 && len(here) > 0: // what they wait for is probably theirs
		return c.late(work, "not reached "+c.at[here[0]].where(), here), true
	case len(late) == 0:
		return Verdict{}, false
	case c.at[work[0]].op != "":
		return c.late(late, "not reached "+c.at[work[0]].where(), work), true
	}
	return c.late(late, "not started the operation that is waited for in "+c.at[work[0]].where(), work), true
}

// mismatch: the ranks are in different collectives.
func (c *court) mismatch() (Verdict, bool) {
	ops := map[string][]int{}
	for _, n := range c.still(inCollective) {
		ops[c.at[n].op] = append(ops[c.at[n].op], n)
	}
	if len(ops) < 2 {
		return Verdict{}, false
	}
	return c.differ(ops, func(n int) string { return c.at[n].op + " (" + c.at[n].line + ")" }, ""), true
}

// differ names the minority. With a tie the lower ranks are taken for the rule.
func (c *court) differ(kinds map[string][]int, say func(int) string, suffix string) Verdict {
	var groups [][]int
	for _, ranks := range kinds {
		slices.Sort(ranks)
		groups = append(groups, ranks)
	}
	slices.SortFunc(groups, func(a, b []int) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return a[0] - b[0]
	})
	rule, odd := groups[0], groups[1]
	return Verdict{
		Culprits: odd,
		Sentence: fmt.Sprintf("%s %s %s where %s %s %s%s.", name(odd), verb(odd, "call"), say(odd[0]), lower(name(rule)), verb(rule, "call"), say(rule[0]), suffix),
	}
}

// same: all ranks are in the same collective.
func (c *court) same() (Verdict, bool) {
	here := c.still(inCollective, inWork)
	if len(here) == 0 || len(here) < len(c.ranks(func(_ Rank, p position) bool { return p.class == inCollective })) {
		return Verdict{}, false
	}
	p := c.at[here[0]]
	if p.op == "" {
		p.op = p.own
	}
	if len(here) == 1 && c.job.World <= 1 {
		return Verdict{Sentence: fmt.Sprintf("Rank %d is in %s (%s) and is the only rank that was found.", here[0], p.op, p.line)}, true
	}
	lines := map[string]bool{}
	for _, n := range here {
		lines[c.at[n].line] = true
	}
	return Verdict{Sentence: fmt.Sprintf(
		"%s in %s (%s)%s and none makes progress: the network between them is stuck, or they are in different groups, or one is a call ahead; flight recorder dumps would tell.",
		is(here), p.op, strings.Join(sorted(lines), " and "), since(c.rank(here[0]).Idle))}, true
}

// others says who waits besides.
func (c *court) others(but int) string {
	rest := slices.DeleteFunc(c.waiting(), func(n int) bool { return n == but })
	if len(rest) == 0 {
		return ""
	}
	return "; " + waits(rest)
}

// places lists what each rank does, those that do the same in one line.
func (c *court) places() []string {
	lines := map[string][]int{}
	for _, r := range c.job.Ranks {
		text := c.at[r.Rank].where()
		switch {
		case r.Gone != "":
			text = r.Gone
		case r.Main == nil && r.Trouble != "":
			text = r.Trouble
		case r.Main == nil:
			text = "no Python stack"
		}
		if r.Gone == "" && r.Main != nil {
			text += ", state " + r.Main.State
			if r.Main.Kernel != "" {
				text += " in " + r.Main.Kernel
			}
			if r.Moved {
				text += ", moving"
			} else if r.Line != "" && c.at[r.Rank].class != unknown {
				text += ": " + r.Line
			}
		}
		lines[text] = append(lines[text], r.Rank)
	}
	var out []string
	for text, ranks := range lines {
		out = append(out, lower(name(ranks))+": "+text)
	}
	slices.Sort(out)
	return slices.Clip(out)
}

// waits lists who waits for which key.
func (c *court) waits() []string {
	var out []string
	for _, w := range c.job.Waits[:min(len(c.job.Waits), 8)] {
		who := "a client"
		if w.Rank >= 0 {
			who = "rank " + strconv.Itoa(w.Rank)
		}
		out = append(out, fmt.Sprintf("%s waits for the key %s of the store for %s", who, w.Key, w.Age.Round(100*time.Millisecond)))
	}
	return out
}
