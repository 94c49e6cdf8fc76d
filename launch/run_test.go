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

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

const testSupervisor = "launch-test-supervisor"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == testSupervisor {
		os.Exit(SupervisorMain())
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
				Nodes: Nodes{
					Endpoint: "127.0.0.1:" + strconv.Itoa(port), Min: 2, Max: 2, Rank: &node,
					JoinTimeout: time.Minute, Silence: time.Minute,
				},
				NoEvidence: true, Logs: Logs{Dir: t.TempDir()}, Supervisor: []string{"supervisor", testSupervisor},
			}, Screen{Out: io.Discard, Err: io.Discard}, nil)
			if report == nil {
				t.Errorf("node %d: %v", node, err)
				return
			}
			e, ok := errors.AsType[*cohort.Error](report.Err())
			if !ok || e.Code != cohort.Remote || e.Rank != 3 || !strings.Contains(e.Detail, "exited with code 5") ||
				strings.Contains(e.Detail, "rank 3") {
				t.Errorf("node %d: %v, %+v", node, report.Err(), e)
			}
		})
	}
	wg.Wait()
}

// TestErrOfAHang: the error of a job that hung on another node has the code of a timeout and names no rank.
func TestErrOfAHang(t *testing.T) {
	t.Parallel()
	var r Report
	r.setEnd(launchcore.End{Code: cohort.DeadlineExceeded, Sentence: "the job hung and was stopped: Rank 1 sleeps"})
	if e, ok := errors.AsType[*cohort.Error](r.Err()); !ok || e.Code != cohort.DeadlineExceeded || e.Rank != cohort.NoRank {
		t.Errorf("%v", r.Err())
	}
}
