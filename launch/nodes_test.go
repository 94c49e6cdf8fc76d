// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

const testKeeper = "launch-test-keeper"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == testKeeper {
		os.Exit(KeeperMain())
	}
	os.Exit(m.Run())
}

// TestRankOfAnotherNode: the errors of all launchers name the rank that failed, on whichever node it was.
func TestRankOfAnotherNode(t *testing.T) {
	t.Parallel()
	port, release, err := testkit.TakePort()
	if err != nil {
		t.Fatal(err)
	}
	release()
	var wg sync.WaitGroup
	for node := range 2 {
		wg.Go(func() {
			report, err := Run(t.Context(), Config{
				Program: []string{"/bin/sh", "-c", "[ $RANK = 3 ] && exit 5; exec sleep 600"}, How: Executable, Workers: 2, RunID: "named",
				Endpoint: "127.0.0.1:" + strconv.Itoa(port), MinNodes: 2, MaxNodes: 2, NodeRank: &node, JoinTimeout: time.Minute, Silence: time.Minute,
				NoEvidence: true, LogDir: t.TempDir(), Keeper: []string{"keeper", testKeeper},
			}, Screen{Out: io.Discard, Err: io.Discard}, nil)
			if report == nil {
				t.Errorf("node %d: %v", node, err)
				return
			}
			e, ok := errors.AsType[*cohort.Error](report.Err())
			if !ok || e.Code != cohort.Remote || e.Rank != 3 || !strings.Contains(e.Detail, "exited with code 5") || strings.Contains(e.Detail, "rank 3") {
				t.Errorf("node %d: %v, %+v", node, report.Err(), e)
			}
		})
	}
	wg.Wait()
}

// TestBlameOfAHang: a node whose workers were stopped because the job stood still says so, and names none of them.
func TestBlameOfAHang(t *testing.T) {
	t.Parallel()
	f := (&attempt{hang: standstill{verdict: "Rank 1 sleeps."}}).blame(launchcore.Outcome{Hung: true})
	if f.Code != cohort.DeadlineExceeded || f.Rank != nil || f.Blame != 0 || f.Sentence != "the job stood still and was stopped: Rank 1 sleeps" {
		t.Errorf("%+v", f)
	}
	var r Report
	r.tell(launchcore.End{Code: f.Code, Sentence: f.Sentence})
	if e, ok := errors.AsType[*cohort.Error](r.Err()); !ok || e.Code != cohort.DeadlineExceeded || e.Rank != cohort.NoRank {
		t.Errorf("%v", r.Err())
	}
}

// TestFailingOfAHang: the first word of a node whose workers hang is that they do, and no failure that names nobody.
func TestFailingOfAHang(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	m := newMember(&job{cfg: Config{Silence: time.Minute}, asked: t.Context()}, ours, "host")
	defer m.close()
	heard := make(chan nodecoord.Message, 1)
	go func() {
		defer close(heard)
		for in := json.NewDecoder(theirs); ; {
			var msg nodecoord.Message
			if in.Decode(&msg) != nil {
				return
			}
			if msg.Failed != nil {
				heard <- msg
				return
			}
		}
	}()
	(&attempt{job: m.job, member: m, hang: standstill{verdict: "Rank 1 sleeps."}}).failing(true)
	if msg := <-heard; msg.Failed == nil || msg.Failed.Code != cohort.DeadlineExceeded || msg.Failed.Blame != 0 {
		t.Errorf("%+v", msg.Failed)
	}
}

// TestLateMark: places that were read after the workers were interrupted are not taken for those before.
func TestLateMark(t *testing.T) {
	t.Parallel()
	a := &attempt{group: launchcore.NewGroup(1, launchcore.Limits{Grace: time.Minute, Interrupt: time.Second})}
	for _, ev := range []launchcore.Event{launchcore.Begin{}, launchcore.UserSignal{Signal: launchcore.SIGINT}, launchcore.EvidenceTaken{}, launchcore.TimerFired{ID: 2}} {
		a.group.Step(ev)
	}
	if a.answered(stacks.Places{7: "in the handler of SIGINT"}); a.before != nil {
		t.Errorf("before: %v", a.before)
	}
}
