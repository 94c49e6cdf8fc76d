// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
)

// TestBehind: a question is asked before its answer is wanted.
func TestBehind(t *testing.T) {
	t.Parallel()
	var running sync.WaitGroup
	asked := make(chan struct{})
	answer := async(&running, func() int { close(asked); return 7 })
	<-asked
	if got := answer(); got != 7 {
		t.Errorf("%d", got)
	}
	running.Wait()
}

// TestBlameOfAHang: a node whose workers were stopped because the job hung says so, and names none of them.
func TestBlameOfAHang(t *testing.T) {
	t.Parallel()
	f := (&attempt{hang: hangFinding{verdict: "Rank 1 sleeps."}}).blame(launchcore.Outcome{Hung: true})
	if f.Code != cohort.DeadlineExceeded || f.Rank != nil || f.Blame != 0 || f.Sentence != "the job hung and was stopped: Rank 1 sleeps" {
		t.Errorf("%+v", f)
	}
}

// TestFailingOfAHang: the first report of a node whose workers hang is a timeout, not a failure without a rank.
func TestFailingOfAHang(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	m := newMember(&Job{cfg: Config{Silence: time.Minute}, asked: t.Context()}, ours, "host")
	defer m.close()
	received := make(chan nodecoord.Message, 1)
	go func() {
		defer close(received)
		for in := json.NewDecoder(theirs); ; {
			var msg nodecoord.Message
			if in.Decode(&msg) != nil {
				return
			}
			if msg.Failed != nil {
				received <- msg
				return
			}
		}
	}()
	(&attempt{job: m.job, member: m, hang: hangFinding{verdict: "Rank 1 sleeps."}}).reportFailure(true)
	if msg := <-received; msg.Failed == nil || msg.Failed.Code != cohort.DeadlineExceeded || msg.Failed.Blame != 0 {
		t.Errorf("%+v", msg.Failed)
	}
}

// TestLateMark: places that were read after the workers were interrupted do not count as those before.
func TestLateMark(t *testing.T) {
	t.Parallel()
	a := &attempt{group: launchcore.NewGroup(1, launchcore.Limits{Grace: time.Minute, Interrupt: time.Second})}
	for _, ev := range []launchcore.Event{
		launchcore.Begin{},
		launchcore.UserSignal{Signal: launchcore.SIGINT},
		launchcore.EvidenceTaken{},
		launchcore.TimerFired{ID: 2},
	} {
		a.group.Step(ev)
	}
	if a.inspected(stacks.Places{7: "in the handler of SIGINT"}); a.before != nil {
		t.Errorf("before: %v", a.before)
	}
}
