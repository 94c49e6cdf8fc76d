// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/selfexe"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Client is the launcher's side.
type Client struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	events chan Event
	done   chan struct{} // the reader has ended
	quit   chan struct{} // closed by Close
	once   sync.Once
	err    error

	mu sync.Mutex // one request after the other; held for the write of a frame

	// Of what the supervisor has started, for the case that it is killed; read's until done is closed.
	workers map[int]bool // processes that lead sessions
	marks   marks

	begun time.Time // when the supervisor began, at the latest; of the goroutine that reads
}

// marks are variables of workers by which their descendants are known.
type marks struct {
	mu struct {
		sync.Mutex
		all []string
	}
}

func (m *marks) add(variable string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if variable != "" && !slices.Contains(m.mu.all, variable) {
		m.mu.all = append(m.mu.all, variable)
	}
}

func (m *marks) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.all
}

// Start starts a supervisor. argv is a command line that leads to [Main].
func Start(argv []string) (*Client, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("supervisor: socket pair: %w", err)
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	theirs := os.NewFile(uintptr(fds[1]), "supervisor")
	defer func() { _ = theirs.Close() }()
	ours := os.NewFile(uintptr(fds[0]), "launcher")
	generic, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	conn, ok := generic.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("supervisor: the socket is a %T", generic)
	}
	self, err := selfexe.Path()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	cmd := exec.Command(self) //nolint:noctx,gosec // it ends with its socket; our own program
	cmd.Args = argv
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("supervisor: start %s: %w", self, err)
	}
	s := &Client{
		cmd: cmd, conn: conn, events: make(chan Event, 64), done: make(chan struct{}), quit: make(chan struct{}),
		workers: map[int]bool{},
	}
	go s.read()
	return s, nil
}

// PID is the supervisor's process.
func (s *Client) PID() int { return s.cmd.Process.Pid }

// Events are what the supervisor reports, in order. The channel is closed when the supervisor has ended, after [Client.Close] or
// by itself.
func (s *Client) Events() <-chan Event { return s.events }

func (s *Client) read() {
	defer close(s.done)
	defer close(s.events)
	for replies := json.NewDecoder(s.conn); ; {
		var e Event
		failpoint.At("supervisor.client.read")
		if replies.Decode(&e) != nil {
			return
		}
		switch {
		case e.Started != nil:
			e.Started.At = s.at(e.Started.After)
			s.workers[e.Started.PID] = true
		case e.Exited != nil:
			e.Exited.At = s.at(e.Exited.After)
			delete(s.workers, e.Exited.PID)
		}
		select {
		case s.events <- e:
		case <-s.quit:
			return
		}
	}
}

// at returns when something happened that the supervisor saw so long after its beginning. Wall times in its reports
// would have no meaning once the clock of the machine was set. When it began is known from its reports: none arrives
// before what it reports.
func (s *Client) at(after time.Duration) time.Time {
	if begun := time.Now().Add(-after); s.begun.IsZero() || begun.Before(s.begun) {
		s.begun = begun
	}
	return s.begun.Add(after)
}

// Spawn asks for a worker with these descriptors as its standard input, output and error output. The answer is an
// [Event] with Started or Refused and this ID.
func (s *Client) Spawn(id int, c Command, files [3]*os.File) error {
	s.marks.add(c.Mark)
	return s.request(request{Start: newStartRequest(id, c)}, files[:]...)
}

// Send sends a signal to the process groups of workers. Those that have ended are skipped.
func (s *Client) Send(ids []int, sig int) error {
	return s.request(request{Send: &signalRequest{ids, sig}})
}

// Sweep kills everything below the supervisor but the workers that live. Gentle leaves leftovers time to end by themselves
// after SIGTERM. The answer is an [Event] with Swept.
func (s *Client) Sweep(gentle bool) error { return s.request(request{Sweep: &sweepRequest{gentle}}) }

// Remove has the supervisor remove folders when the launcher and everything below the supervisor has ended: a launcher
// that is killed cannot. A supervisor that has ended itself is noticed by its events.
func (s *Client) Remove(folders []string) {
	_ = s.request(request{Remove: &removeRequest{convert[[]byte](folders)}})
}

// Hold has the supervisor lock the file that says that the run lives, so that no other launcher takes it for dead while the supervisor
// removes what is left of it.
func (s *Client) Hold(file string) {
	if file != "" {
		_ = s.request(request{Hold: &holdRequest{[]byte(file)}})
	}
}

func (s *Client) request(r request, files ...*os.File) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("supervisor: arguments and environment of a worker take %d bytes; at most %d fit", len(body), maxFrame)
	}
	frame := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...) //nolint:gosec // bounded above
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = syscall.UnixRights(fds...)
	}
	failpoint.At("supervisor.client.lock")
	s.mu.Lock()
	defer s.mu.Unlock()
	failpoint.At("supervisor.client.write")
	n, _, err := s.conn.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = s.conn.Write(frame[n:])
	}
	if err != nil {
		return fmt.Errorf("supervisor: its process has ended: %w", err)
	}
	return nil
}

// Close ends the supervisor and with it everything below it, and waits until that is done.
func (s *Client) Close() error {
	s.once.Do(func() {
		close(s.quit)
		_ = s.conn.CloseWrite()
		late := time.AfterFunc(closeTime, func() { _ = s.cmd.Process.Kill() }) // it is stopped, for example
		err := s.cmd.Wait()
		late.Stop()
		_ = s.conn.Close()
		<-s.done
		if err != nil {
			// The supervisor was killed: no other process knows what it had below it.
			s.err = errors.Join(fmt.Errorf("supervisor: %w", err), s.sweepOrphans())
		}
	})
	return s.err
}

// sweepOrphans kills what a supervisor that was killed has left behind, and nothing else that this process may have started.
func (s *Client) sweepOrphans() error {
	for pid := range s.workers {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	killed, left := sweep(func() []int { return started(s.workers, s.marks.list()) }, false, func() bool { return true })
	if left > 0 {
		return fmt.Errorf("%d of %d processes that it left do not end", left, killed)
	}
	return nil
}

// dropped closes descriptors that were not asked for.
func dropped(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

var errShort = io.ErrUnexpectedEOF
