// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/launch/joblog"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
)

const (
	// sampleInterval is the time between the two samples of the workers for a question.
	sampleInterval = 300 * time.Millisecond
	// nodesTime bounds the wait for what other nodes see.
	nodesTime = 12 * time.Second
	// presenceTime bounds the wait for what the host itself knows.
	presenceTime = time.Second
	// silentFrom is after which time without a heartbeat, which is sent each second, a launcher counts as silent.
	silentFrom = 5 * time.Second
	// maxAnswering bounds the questions of other nodes that are answered at a time.
	maxAnswering = 4
	// maxSeen bounds what a node reports of its workers, so that it fits into a message.
	maxSeen = nodecoord.MaxMessage - 4096
)

// serveControl lets "cohort why" ask what the workers are doing: this process may read them where others may not, and reaches
// the launchers of other nodes.
func (j *Job) serveControl() (*controlsock.Server, error) {
	return controlsock.Serve(j.run.Control, jobscan.LauncherSocket, controlsock.Answers{
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
		"stacks": controlsock.Stacks,
	})
}

// examine looks at the workers of all nodes.
func (j *Job) examine(ctx context.Context) (*verdict.Job, error) {
	a := j.current.Load()
	if a == nil {
		return nil, cohort.New(op, cohort.Unavailable, "no attempt runs")
	}
	if a.member == nil || a.place.nodes == 1 {
		seen := a.examineLocal(ctx, sampleInterval, jobscan.Examine)
		seen.Local = true
		return &seen, nil
	}
	var all []verdict.Job
	for _, one := range askAll[verdict.Job](ctx, a.member, a.answering(ctx), "", nodesTime) {
		all = append(all, one.from.OwnRanks(one.said))
	}
	if len(all) == 0 { // not even this node, which is asked through the host
		all = append(all, a.examineLocal(ctx, sampleInterval, jobscan.Examine))
	}
	seen := nodecoord.MergeReports(all)
	seen.Local = len(all) == a.place.nodes // none is missing: a rank that was not seen does not run
	if !seen.Local {
		seen.Notes = append(seen.Notes, a.missing(ctx, seen.Ranks, len(all)))
	}
	return &seen, nil
}

// answering returns how many nodes are going to answer: those that have been silent for some time are not waited for.
func (a *attempt) answering(ctx context.Context) int {
	contacts := askHost(ctx, a.member)
	silent := slices.DeleteFunc(contacts, func(h nodecoord.Contact) bool { return h.Ago <= silentFrom })
	return max(1, a.place.nodes-len(silent))
}

// missing says which nodes have not answered, and when the host last received from them.
func (a *attempt) missing(ctx context.Context, seen []verdict.Rank, answered int) string {
	if quiet := a.member.wire.Quiet(); quiet > silentFrom {
		return fmt.Sprintf(
			"the launcher that hosts the rendezvous at %s has not responded for %d s: nothing is known of ranks on other nodes",
			a.member.host, int(quiet.Seconds()))
	}
	contacts := askHost(context.WithoutCancel(ctx), a.member)
	var nodes []string
	for i, n := range a.place.roster {
		if slices.ContainsFunc(seen, func(r verdict.Rank) bool { return r.Rank >= int(n.Base) && r.Rank < int(n.Base)+n.Workers }) {
			continue
		}
		ranks := make([]cohort.Rank, n.Workers)
		for k := range ranks {
			ranks[k] = n.Base + cohort.Rank(k)
		}
		nodes = append(nodes, fmt.Sprintf("node %d on %s (%s)%s", i, n.Host, ranklist.Named(ranks), lastContact(contacts, i)))
	}
	if more := a.place.nodes - answered - len(nodes); len(nodes) == 0 {
		nodes = []string{"the others"}
	} else if more > 0 { // the roster is bounded
		nodes = append(nodes, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("only %d of the %d nodes have answered, and nothing is known of %s", answered, a.place.nodes,
		strings.Join(nodes, "; "))
}

// lastContact says when the host last received from a node, "" if it is not known.
func lastContact(contacts []nodecoord.Contact, node int) string {
	i := slices.IndexFunc(contacts, func(h nodecoord.Contact) bool { return h.Node == node })
	switch {
	case i < 0:
		return ""
	case contacts[i].Ago > silentFrom:
		return fmt.Sprintf(", whose launcher (process %d) has not responded for %d s", contacts[i].PID, int(contacts[i].Ago.Seconds()))
	}
	return fmt.Sprintf(", whose launcher (process %d) responds", contacts[i].PID)
}

// recordings returns the flight recorder dumps of the Go workers of all nodes.
func (j *Job) recordings(ctx context.Context) ([]flightrec.Dump, error) {
	a := j.current.Load()
	if a == nil {
		return nil, cohort.New(op, cohort.Unavailable, "no attempt runs")
	}
	if a.member == nil || a.place.nodes == 1 {
		return jobscan.LocalTraces(ctx, a.asJob()), nil
	}
	var all []flightrec.Dump
	for _, one := range askAll[[]flightrec.Dump](ctx, a.member, a.answering(ctx), jobscan.Recordings, nodesTime) {
		all = append(all, one.said...)
	}
	return all, nil
}

// examine looks at the workers of this node.
func (a *attempt) examineLocal(ctx context.Context, apart time.Duration,
	look func(context.Context, jobscan.Job, time.Duration) verdict.Job,
) verdict.Job {
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
		if words := w.endText.Load(); words != nil {
			seen.Ranks = append(seen.Ranks, verdict.Rank{Rank: int(w.rank), Host: a.job.host, Process: verdict.Process{Gone: *words}})
		}
	}
	return seen
}

// said is the answer of a node.
type said[T any] struct {
	from *nodecoord.Answer
	said T
}

// askHost asks the host when it last received from each node.
func askHost(ctx context.Context, m *member) []nodecoord.Contact {
	for _, one := range askAll[[]nodecoord.Contact](ctx, m, 1, nodecoord.Presence, presenceTime) {
		return one.said
	}
	return nil
}

// askAll asks all nodes, this one included, through the host, unless that is silent. Answers that make no sense count, but are left out.
func askAll[T any](ctx context.Context, m *member, nodes int, what string, limit time.Duration) []said[T] {
	if m.wire.Quiet() > silentFrom {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	id, answers, forget := m.questions.Ask(nodes)
	defer forget()
	m.send(nodecoord.Message{Examine: &nodecoord.Question{ID: id, What: what}})
	var all []said[T]
	for range nodes {
		select {
		case answer := <-answers:
			var one T
			if json.Unmarshal(answer.Job, &one) == nil {
				all = append(all, said[T]{answer, one})
			}
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// answer answers the question of a node.
func (m *member) answer(q nodecoord.Question) {
	select {
	case m.answering <- struct{}{}:
	default:
		return
	}
	m.stopped.Go(func() {
		defer func() { <-m.answering }()
		a := m.job.current.Load()
		if a == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), nodesTime)
		defer cancel()
		var answer json.RawMessage
		switch q.What {
		case "":
			answer = nodecoord.TrimReport(a.examineLocal(ctx, sampleInterval, jobscan.Examine), maxSeen)
		case jobscan.Recordings:
			answer = nodecoord.ShortenDumps(jobscan.LocalTraces(ctx, a.asJob()), maxSeen)
		}
		if answer != nil {
			m.send(nodecoord.Message{Seen: &nodecoord.Answer{Question: q, Job: answer}})
		}
	})
}
