// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package worlds_test runs random RPC worlds of Go and real PyTorch workers, and checks every answer against a model.
package worlds_test

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		os.Exit(child(spec))
	}
	goleak.VerifyTestMain(m, torchtest.LastingGoroutines()...)
}

var (
	//go:embed world.py
	worldSource string
	//go:embed worker.py
	workerSource string
)

// scriptedSource has to be a file: TorchScript reads its text.
const scriptedSource = `
import torch
from typing import List
@torch.jit.script
def double(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k
@torch.jit.script
def total(xs: List[int]) -> int:
    sum = 0
    for x in xs:
        sum += x
    return sum
`

// patience bounds every command, with much room for a busy machine.
const patience = 60 * time.Second

// worker is a member of a world as the test sees it.
type worker struct {
	name  string
	rank  int
	torch *torchtest.Torch // nil for a Go worker
	alone bool             // a Go worker in a process of its own

	proc   *torchtest.Proc
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	driver *driver
	conn   net.Conn

	mu      sync.Mutex
	nextID  int
	pending map[int]chan reply
}

func (w *worker) isGo() bool { return w.torch == nil }

func (w *worker) String() string {
	switch {
	case w.torch != nil:
		return fmt.Sprintf("%d:%s(torch %s)", w.rank, w.name, w.torch.Name)
	case w.alone:
		return fmt.Sprintf("%d:%s(go process)", w.rank, w.name)
	}
	return fmt.Sprintf("%d:%s(go)", w.rank, w.name)
}

// logs collects what Go workers of this process say.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// stage is what the workers of a world need to be started and spoken to.
type stage struct {
	t        *testing.T
	listener net.Listener
	arrivals map[string]chan net.Conn
	mu       sync.Mutex
	wg       sync.WaitGroup
	logs     *logs
	dirs     map[*torchtest.Torch][2]string // shared folders, by the path outside and inside
	port     int                            // of the store
	workers  []*worker
}

func newStage(t *testing.T) *stage {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{
		t: t, listener: l, arrivals: map[string]chan net.Conn{}, logs: &logs{}, dirs: map[*torchtest.Torch][2]string{},
		port: testkit.FreePort(t),
	}
	s.wg.Go(s.accept)
	t.Cleanup(s.end)
	return s
}

func (s *stage) end() {
	_ = s.listener.Close()
	for _, w := range s.workers {
		w.kill()
	}
	s.wg.Wait()
	if s.t.Failed() {
		s.t.Logf("log of the Go workers:\n%s", s.logs)
		for _, w := range s.workers {
			if w.stderr != nil {
				s.t.Logf("stderr of %v:\n%s", w, w.stderr)
			}
		}
	}
}

// kill ends a worker without a word.
func (w *worker) kill() {
	switch {
	case w.proc != nil:
		w.proc.Kill()
	case w.cmd != nil && w.cmd.Process != nil:
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
		w.cmd = nil
	case w.driver != nil:
		w.driver.close()
	}
	if w.conn != nil {
		_ = w.conn.Close()
	}
}

func (s *stage) arrival(name string) chan net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrivals[name] == nil {
		s.arrivals[name] = make(chan net.Conn, 1)
	}
	return s.arrivals[name]
}

func (s *stage) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			r := bufio.NewReaderSize(conn, 16)
			name, err := r.ReadString('\n')
			if err != nil {
				return
			}
			s.arrival(strings.TrimSpace(name)) <- &buffered{Conn: conn, r: r}
		})
	}
}

// buffered is a connection whose first bytes were read.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// dir returns a folder that PyTorch workers and Go workers see.
func (s *stage) dir(tr *torchtest.Torch) (host, inside string) {
	if _, ok := s.dirs[tr]; !ok {
		host, inside := tr.TempDir(s.t)
		if err := os.WriteFile(filepath.Join(host, "scripted.py"), []byte(scriptedSource), 0o600); err != nil {
			s.t.Fatal(err)
		}
		s.dirs[tr] = [2]string{host, inside}
	}
	return s.dirs[tr][0], s.dirs[tr][1]
}

// start starts a worker's process, or makes its driver. It does not join the world yet.
func (s *stage) start(w *worker) {
	s.t.Helper()
	w.pending = map[int]chan reply{}
	s.workers = append(s.workers, w)
	_, control, err := net.SplitHostPort(s.listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	switch {
	case w.torch != nil:
		_, inside := s.dir(w.torch)
		w.proc = w.torch.Start(s.t, torchtest.Script{
			Name: w.name + ".py", Source: workerSource, Modules: map[string]string{"world": worldSource},
			Env: map[string]string{
				"WORLD_PORT": control, "WORLD_NAME": w.name, "WORLD_DIR": inside,
				"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(s.port),
			},
		})
	case w.alone:
		w.stderr = &bytes.Buffer{}
		w.cmd = exec.Command(os.Args[0])
		w.cmd.Stderr = w.stderr
		w.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", childEnv, w.name, control), "TP_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
		if err := w.cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
	default:
		w.driver = newDriver(slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelWarn})).With(
			slog.String("worker", w.name)))
		return
	}
	select {
	case w.conn = <-s.arrival(w.name):
	case <-time.After(patience):
		s.t.Fatalf("%v did not start", w)
	}
	s.wg.Go(func() { w.read(w.conn) })
}

func (w *worker) read(conn net.Conn) {
	in := json.NewDecoder(conn)
	for {
		var r reply
		if err := in.Decode(&r); err != nil {
			break
		}
		w.mu.Lock()
		ch := w.pending[r.ID]
		delete(w.pending, r.ID)
		w.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, ch := range w.pending {
		delete(w.pending, id)
		ch <- reply{ID: id, Value: "!gone"}
	}
	w.pending = nil
}

// post gives a worker a command; the answer comes through the channel.
func (s *stage) post(ctx context.Context, w *worker, c command) <-chan reply {
	ch := make(chan reply, 1)
	if w.driver != nil {
		s.wg.Go(func() { ch <- w.driver.run(ctx, c) })
		return ch
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending == nil {
		ch <- reply{Value: "!gone"}
		return ch
	}
	w.nextID++
	c.ID = w.nextID
	w.pending[c.ID] = ch
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	if _, err := w.conn.Write(append(b, '\n')); err != nil {
		delete(w.pending, c.ID)
		ch <- reply{Value: "!gone"}
	}
	return ch
}

// await returns an answer, also one that has come when the time was over.
func await(ctx context.Context, answer <-chan reply) string {
	select {
	case r := <-answer:
		return r.Value
	case <-ctx.Done():
	}
	select {
	case r := <-answer:
		return r.Value
	case <-time.After(time.Second): // a worker that has a context has it from us, and needs a moment
		return "!no answer in time"
	}
}

// do gives a worker a command and waits for the answer.
func (s *stage) do(ctx context.Context, w *worker, c command) string {
	return await(ctx, s.post(ctx, w, c))
}

// each gives several workers a command at once and fails unless all answer what is wanted.
func (s *stage) each(ctx context.Context, workers []*worker, want string, c func(w *worker) command) {
	s.t.Helper()
	answers := make([]<-chan reply, len(workers))
	for i, w := range workers {
		answers[i] = s.post(ctx, w, c(w))
	}
	for i, w := range workers {
		if got := await(ctx, answers[i]); got != want {
			s.t.Errorf("%v: %s: %s", w, c(w).Op, got)
		}
	}
	if s.t.Failed() {
		s.t.FailNow()
	}
}
