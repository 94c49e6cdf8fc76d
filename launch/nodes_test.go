// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/freeport"
	"github.com/cohort-dist/cohort/internal/launchcore"
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
	port, release, err := freeport.Take()
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
			e, ok := errors.AsType[*dist.Error](report.Err())
			if !ok || e.Code != dist.Remote || e.Rank != 3 || !strings.Contains(e.Detail, "exited with code 5") || strings.Contains(e.Detail, "rank 3") {
				t.Errorf("node %d: %v, %+v", node, report.Err(), e)
			}
		})
	}
	wg.Wait()
}

// TestBlameOfAHang: a node whose workers were stopped because the job stood still says so, and names none of them.
func TestBlameOfAHang(t *testing.T) {
	t.Parallel()
	f := (&attempt{verdict: "Rank 1 sleeps."}).blame(launchcore.Outcome{Hung: true})
	if f.Code != dist.DeadlineExceeded || f.Rank != nil || f.Blame != 0 || f.Sentence != "the job stood still and was stopped: Rank 1 sleeps" {
		t.Errorf("%+v", f)
	}
	var r Report
	r.tell(launchcore.End{Code: f.Code, Sentence: f.Sentence})
	if e, ok := errors.AsType[*dist.Error](r.Err()); !ok || e.Code != dist.DeadlineExceeded || e.Rank != dist.NoRank {
		t.Errorf("%v", r.Err())
	}
}
