// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package ncclras

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// answers starts a process of NCCL: it answers as 2.28 does and sends a report. One that is not JSON is sent as older ones do.
func answers(t *testing.T, report string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for in := bufio.NewScanner(conn); in.Scan(); {
			switch command := in.Text(); {
			case strings.HasPrefix(command, "CLIENT"):
				_, _ = conn.Write([]byte("SERVER PROTOCOL 2\n"))
			case strings.HasPrefix(command, "TIMEOUT"), command == "SET FORMAT json" && !strings.HasPrefix(report, "NCCL version"):
				_, _ = conn.Write([]byte("OK\n"))
			case command == "VERBOSE STATUS":
				_, _ = conn.Write([]byte(report))
				return
			default:
				_, _ = conn.Write([]byte("ERROR: Unknown command " + command + "\n"))
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestAsk reads a report of NCCL 2.28.9.
func TestAsk(t *testing.T) {
	t.Parallel()
	sample, err := os.ReadFile("testdata/one.json")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Ask(t.Context(), answers(t, string(sample)))
	if err != nil || len(r.Communicators) != 2 || r.Communicators[0].Ranks[0].PID != 423 || r.Communicators[1].Size != 1 {
		t.Fatalf("%v %+v", err, r)
	}
	want := []string{"NCCL: all ranks of 2 communicators answer and have started equally many operations"}
	if diff := cmp.Diff(want, r.Lines()); diff != "" {
		t.Error(diff)
	}
	if r.Of([]int{7}); r.Lines() != nil {
		t.Errorf("of another job: %q", r.Lines())
	}
}

// TestAskText reads what NCCL says where it knows no JSON: three ranks, of which rank 1 stayed away from the sixth all_reduce.
func TestAskText(t *testing.T) {
	t.Parallel()
	sample, err := os.ReadFile("testdata/behind.txt")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Ask(t.Context(), answers(t, string(sample)))
	if err != nil {
		t.Fatal(err)
	}
	r.Of([]int{7})
	want := []string{
		"NCCL, of all jobs on this host: #0-0 (3bf8731aa21efdb3) MISMATCH",
		"NCCL, of all jobs on this host: Communicator ranks have different AllReduce operation counts",
		"NCCL, of all jobs on this host: 2 ranks have launched up to operation 6",
		"NCCL, of all jobs on this host: Rank 1 has launched up to operation 5 -- GPU 0 managed by process 1276 on node 192.0.2.2",
	}
	if diff := cmp.Diff(want, r.Lines()); diff != "" {
		t.Error(diff)
	}
}

// TestAskErrors: an answer that is not a report is an error, and Ask waits for no longer than ctx allows.
func TestAskErrors(t *testing.T) {
	t.Parallel()
	for _, report := range []string{"", "{", `{"communicators": 7}`, "ERROR"} {
		if r, err := Ask(t.Context(), answers(t, report)); err == nil {
			t.Errorf("%q: %+v", report, r)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if r, err := Ask(ctx, silent.Addr().String()); err == nil {
		t.Errorf("%+v", r)
	}
}

// TestLines: a rank that is a call behind, one that is dead and those that were aborted or
// have failed are named; one that is at work is not.
func TestLines(t *testing.T) {
	t.Parallel()
	var r Report
	if err := json.Unmarshal([]byte(`{"communicators": [{"hash": "0x9c54", "size": 6,
		"ranks": [
			{"rank": 0, "pid": 10, "collective_counts": {"AllReduce": 812, "Broadcast": 1}},
			{"rank": 1, "pid": 11, "collective_counts": {"AllReduce": 811, "Broadcast": 1}, "status": {"async_error": 6, "abort_flag": true}},
			{"rank": 2, "pid": 12, "collective_counts": {"AllReduce": 812, "Broadcast": 1}, "status": {"async_error": 7}},
			{"rank": 4, "pid": 14, "status": {"async_error": 2}},
			{"rank": 5, "pid": 15, "status": {"async_error": 7, "abort_flag": true}}],
		"missing_ranks": [{"rank": 3, "host": "10.0.0.3", "pid": 77, "dead": true}]}]}`), &r); err != nil {
		t.Fatal(err)
	}
	r.Of([]int{12})
	want := []string{
		"NCCL, communicator 0x9c54 of 6 ranks: rank 3 (host 10.0.0.3, process 77) is dead",
		"NCCL, communicator 0x9c54 of 6 ranks: rank 1 was aborted after a remote error",
		"NCCL, communicator 0x9c54 of 6 ranks: rank 4 has failed with a system error",
		"NCCL, communicator 0x9c54 of 6 ranks: rank 5 was aborted",
		"NCCL, communicator 0x9c54 of 6 ranks: AllReduce was started 811 times by rank 1, 812 times by ranks 0,2",
	}
	if diff := cmp.Diff(want, r.Lines()); diff != "" {
		t.Error(diff)
	}
}
