// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package jobscan

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const waitingDump = `{"version":"2.10","entries":[{"collective_seq_id":4,"process_group":["0","default_pg"],` +
	`"profiling_name":"nccl:all_reduce","state":"scheduled"}]}`

// TestAskPipe: an NCCL rank is asked through its pipe, as PyTorch's monitor thread reads it.
func TestAskPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := Rank{Rank: 3, PID: os.Getpid(), env: map[string]string{
		"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": filepath.Join(dir, "pipe_"), "TORCH_FR_DUMP_TEMP_FILE": filepath.Join(dir, "dump_"),
	}}
	if d := r.ask(t.Context(), question{What: askRecorder, Notes: true}).Dump; d != nil {
		t.Errorf("without a pipe: %+v", d)
	}
	pipe := filepath.Join(dir, "pipe_3.pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if d := r.ask(t.Context(), question{What: askRecorder, Notes: true}).Dump; d != nil { // no process reads it: it must not wait
		t.Errorf("without a reader: %+v", d)
	}
	f, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	written := make(chan error, 1)
	go func() {
		if _, failed := io.ReadFull(f, make([]byte, 1)); failed != nil {
			written <- failed
			return
		}
		written <- os.WriteFile(filepath.Join(dir, "dump_3"), []byte(waitingDump), 0o600)
	}()
	if d := r.ask(t.Context(), question{What: askRecorder, Notes: false}).Dump; d != nil {
		t.Errorf("it was not asked: %+v", d)
	}
	d := r.ask(t.Context(), question{What: askRecorder, Notes: true}).Dump
	if d == nil || len(d.Entries) != 1 || d.Entries[0].Seq != 4 || !d.Entries[0].Open {
		t.Errorf("the dump is %+v", d)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if d := r.ask(t.Context(), question{What: askRecorder, Notes: false}).Dump; d != nil {
		t.Errorf("a dump of an unknown time: %+v", d)
	}
}

// TestSeveralRecorders: of the recorders of a process the one counts that has an operation which is not finished.
func TestSeveralRecorders(t *testing.T) {
	t.Parallel()
	const finished = `{"version":"2.10","entries":[{"collective_seq_id":9,"process_group":["0","default_pg"],` +
		`"profiling_name":"gloo:all_reduce","state":"scheduled","retired":true}]}`
	waiting := strings.Replace(waitingDump, `"nccl:`, `"nccl2:`, 1)
	for _, c := range []struct {
		dumps map[string]string // by the backend that is asked for
		seq   int
	}{
		{map[string]string{"": finished, "nccl2": waiting}, 4},
		{map[string]string{"": finished, "nccl2": `{"version":"2.10"}`}, 9},
		{map[string]string{"": `{"version":"2.10"}`, "nccl2": finished}, 9},
		{map[string]string{"": waiting, "nccl2": finished}, 4},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if dump := c.dumps[r.URL.Query().Get("backend")]; r.URL.Path == "/handler/fr_trace_json" && dump != "" {
				_, _ = io.WriteString(w, dump)
				return
			}
			http.NotFound(w, r)
		}))
		d := recorded(t.Context(), question{Env: map[string]string{"TORCH_WORKER_SERVER_SOCKET": web.URL}})
		web.Close()
		if d == nil || len(d.Entries) != 1 || d.Entries[0].Seq != c.seq {
			t.Errorf("of %v: %+v", c.dumps, d)
		}
	}
}

// TestAskStore: a job on other hosts is explained by its store and by the debug servers of its ranks.
func TestAskStore(t *testing.T) {
	t.Parallel()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	ctx := t.Context()
	client, err := tcpstore.Dial(ctx, server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for rank, dump := range []string{waitingDump, `{"version":"2.10"}`} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Path == "/handler/dump_nccl_trace_json" {
				_, _ = io.WriteString(w, dump)
				return
			}
			http.NotFound(w, r)
		}))
		defer web.Close()
		if err = client.Set(ctx, "debug_server/rank"+string(rune('0'+rank)), []byte(web.URL)); err != nil {
			t.Fatal(err)
		}
	}
	if v := verdict.Judge(AskStore(ctx, client)); v.Sentence != "Rank 1 has not reached all_reduce number 4 of default_pg; rank 0 waits." {
		t.Errorf("%s\n%v", v.Sentence, v.Proof)
	}
}

// TestOldKeys: a store in which more workers have joined than a restarted job has is not that of this attempt alone.
func TestOldKeys(t *testing.T) {
	t.Parallel()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	client, err := tcpstore.Dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	of := func(world int, more ...string) *Job {
		env := map[string]string{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
		for i := 0; i+1 < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return &Job{Store: server.Addr().String(), World: world, Ranks: []Rank{{env: env}}}
	}
	if of(2).ask(t.Context(), question{What: askOldKeys, Addr: of(2).Store}).Yes {
		t.Error("of an empty store")
	}
	for range 3 {
		if _, err := client.JoinWorker(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Set(t.Context(), "/worker/attempt_1/default_pg/0//cpu//0/0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if of(2).ask(t.Context(), question{What: askOldKeys, Addr: of(2).Store}).Yes {
		t.Error("of a store in which each attempt has keys of its own")
	}
	if err := client.Set(t.Context(), "default_pg/0//cpu//0/0", []byte("x")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		job  *Job
		want bool
	}{
		"a restart":                      {of(2), true},
		"as many workers as the job has": {of(3), false},
		"the first attempt":              {of(2, "TORCHELASTIC_RESTART_COUNT", "0"), false},
		"a store of rank 0":              {of(2, "TORCHELASTIC_USE_AGENT_STORE", "False"), false},
		"a store that is new each time":  {of(2, controlsock.EnvRun, "/run/x"), false},
	} {
		if got := c.job.ask(t.Context(), question{What: askOldKeys, Addr: c.job.Store}).Yes; got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
