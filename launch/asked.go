// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/control"
	"github.com/cohort-dist/cohort/internal/joblog"
	"github.com/cohort-dist/cohort/internal/jobscan"
	"github.com/cohort-dist/cohort/internal/nodehost"
	"github.com/cohort-dist/cohort/internal/postmortem"
	"github.com/cohort-dist/cohort/internal/recorder"
	"github.com/cohort-dist/cohort/internal/verdict"
)

const (
	// lookApart is the time between the two looks at the workers that somebody asks for.
	lookApart = 300 * time.Millisecond
	// nodesTime bounds the wait for what other nodes see.
	nodesTime = 12 * time.Second
	// maxLooking bounds the questions of other nodes that are answered at a time.
	maxLooking = 4
)

// answer lets "cohort why" ask what the workers are doing: this process may read them where others may not, and reaches
// the launchers of other nodes.
func (j *job) answer() (*control.Server, error) {
	return control.Serve(j.run.Control, jobscan.LauncherSocket, control.Answers{
		jobscan.Examination: func(ctx context.Context) ([]byte, error) {
			seen, err := j.examine(ctx)
			if err != nil {
				return nil, err
			}
			return json.Marshal(seen)
		},
		jobscan.Recordings: func(ctx context.Context) ([]byte, error) {
			dumps, err := j.recordings(ctx)
			if err != nil {
				return nil, err
			}
			return json.Marshal(dumps)
		},
		"stacks": control.Stacks,
	})
}

// examine looks at the workers of all nodes.
func (j *job) examine(ctx context.Context) (*verdict.Job, error) {
	a := j.current.Load()
	if a == nil {
		return nil, dist.New(op, dist.Unavailable, "no attempt runs")
	}
	if a.member == nil || a.place.nodes == 1 {
		seen := a.examine(ctx, lookApart, jobscan.Examine)
		seen.Local = true
		return &seen, nil
	}
	all := askAll[verdict.Job](ctx, a.member, a.place.nodes, "")
	if len(all) == 0 {
		return nil, dist.New(op, dist.DeadlineExceeded, "no node has answered")
	}
	seen := merge(all)
	seen.Local = len(all) == a.place.nodes // nobody is missing: a rank that was not seen does not run
	if !seen.Local {
		seen.Notes = append(seen.Notes, fmt.Sprintf("only %d of the %d nodes have answered: ranks that were not seen are on the others", len(all), a.place.nodes))
	}
	return &seen, nil
}

// recordings returns the flight recorder dumps of the Go workers of all nodes.
func (j *job) recordings(ctx context.Context) ([]recorder.Dump, error) {
	a := j.current.Load()
	if a == nil {
		return nil, dist.New(op, dist.Unavailable, "no attempt runs")
	}
	if a.member == nil || a.place.nodes == 1 {
		return jobscan.LocalTraces(ctx, a.asJob()), nil
	}
	return slices.Concat(askAll[[]recorder.Dump](ctx, a.member, a.place.nodes, jobscan.Recordings)...), nil
}

// shortened returns dumps as JSON, with the last operations alone where that is too long for a message.
func shortened(dumps []recorder.Dump) json.RawMessage {
	for _, most := range []int{math.MaxInt, 256, 32, 4, 1} {
		for _, d := range dumps {
			for i, g := range d.Groups {
				cut := max(0, len(g.Entries)-most)
				d.Groups[i].Entries = g.Entries[cut:]
				d.Groups[i].Lost += uint64(cut)
			}
		}
		if b, err := json.Marshal(dumps); err == nil && len(b) <= maxSeen {
			return b
		}
	}
	return nil
}

// examine looks at the workers of this node.
func (a *attempt) examine(ctx context.Context, apart time.Duration, look func(context.Context, jobscan.Job, time.Duration) verdict.Job) verdict.Job {
	seen := look(ctx, a.asJob(), apart)
	printed := a.job.board.snapshot().Ranks
	for i := range seen.Ranks {
		for _, r := range printed {
			if tail := r.tails[1]; int(r.Rank) == seen.Ranks[i].Rank && tail != nil {
				seen.Ranks[i].Raised = postmortem.Raised(joblog.Plain(tail.Bytes()))
			}
		}
	}
	for _, w := range a.workers {
		if words := a.ends[w.local].Load(); words != nil {
			seen.Ranks = append(seen.Ranks, verdict.Rank{Rank: int(w.rank), Host: a.job.host, Gone: *words})
		}
	}
	return seen
}

// merge puts together what the nodes of a job have seen.
func merge(all []verdict.Job) verdict.Job {
	known := func(j verdict.Job) (n int) {
		for _, w := range j.Waits {
			if w.Rank >= 0 {
				n++
			}
		}
		return n
	}
	out := verdict.Job{World: all[0].World, Taken: all[0].Taken}
	for _, j := range all {
		out.Ranks, out.GPUErrors = append(out.Ranks, j.Ranks...), append(out.GPUErrors, j.GPUErrors...)
		for _, note := range j.Notes {
			if !slices.Contains(out.Notes, note) {
				out.Notes = append(out.Notes, note)
			}
		}
		// All of them asked the same store, and each knows the ranks of its own host.
		if len(out.Waits) == 0 || known(j) > known(out) {
			out.Waits = j.Waits
		}
		if len(out.NCCL) == 0 { // each process of NCCL answers for all
			out.NCCL, out.Communicators = j.NCCL, j.Communicators
		}
	}
	return out
}

// maxSeen bounds what a node tells of its workers, so that it fits into a message.
const maxSeen = nodehost.MaxMessage - 4096

// trimmed returns what was seen as JSON, with less detail where that is too long.
func trimmed(seen verdict.Job) json.RawMessage {
	for _, less := range []func(*verdict.Rank){
		func(*verdict.Rank) {},
		func(r *verdict.Rank) { r.Threads = nil },
		func(r *verdict.Rank) {
			if d := r.Dump; d != nil && len(d.Entries) > 64 {
				cut := *d
				cut.Entries = d.Entries[len(d.Entries)-64:]
				r.Dump = &cut
			}
		},
		func(r *verdict.Rank) { r.Dump = nil },
		func(r *verdict.Rank) { r.Main, r.Trouble = nil, "there are too many ranks to tell all" },
	} {
		seen.Ranks = slices.Clone(seen.Ranks)
		for i := range seen.Ranks {
			less(&seen.Ranks[i])
		}
		if b, err := json.Marshal(seen); err == nil && len(b) <= maxSeen {
			return b
		}
	}
	return nil
}

// questions are those of this node to the launchers of others.
type questions struct {
	mu struct {
		sync.Mutex
		next    int
		waiting map[int]chan json.RawMessage
	}
	looking chan struct{}
}

func newQuestions() *questions {
	q := &questions{looking: make(chan struct{}, maxLooking)}
	q.mu.waiting = map[int]chan json.RawMessage{}
	return q
}

// ask makes a question and returns where its answers arrive.
func (q *questions) ask(nodes int) (id int, answers <-chan json.RawMessage, forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.next++
	id = q.mu.next
	ch := make(chan json.RawMessage, nodes)
	q.mu.waiting[id] = ch
	return id, ch, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.mu.waiting, id)
	}
}

// answered takes an answer of a node.
func (q *questions) answered(m *nodehost.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ch := q.mu.waiting[m.ID]; ch != nil {
		select {
		case ch <- m.Job:
		default: // a node that answers twice
		}
	}
}

// askAll asks all nodes, this one included, through the host. Answers that make no sense count, but are left out.
func askAll[T any](ctx context.Context, m *member, nodes int, what string) []T {
	ctx, cancel := context.WithTimeout(ctx, nodesTime)
	defer cancel()
	id, answers, forget := m.questions.ask(nodes)
	defer forget()
	m.say(nodehost.Message{Examine: &nodehost.Question{ID: id, What: what}})
	var all []T
	for range nodes {
		select {
		case answer := <-answers:
			var one T
			if json.Unmarshal(answer, &one) == nil {
				all = append(all, one)
			}
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// tell answers the question of a node.
func (m *member) tell(q nodehost.Question) {
	select {
	case m.questions.looking <- struct{}{}:
	default:
		return
	}
	m.stopped.Go(func() {
		defer func() { <-m.questions.looking }()
		a := m.job.current.Load()
		if a == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), nodesTime)
		defer cancel()
		var answer json.RawMessage
		switch q.What {
		case "":
			answer = trimmed(a.examine(ctx, lookApart, jobscan.Examine))
		case jobscan.Recordings:
			answer = shortened(jobscan.LocalTraces(ctx, a.asJob()))
		}
		if answer != nil {
			m.say(nodehost.Message{Seen: &nodehost.Answer{Question: q, Job: answer}})
		}
	})
}
