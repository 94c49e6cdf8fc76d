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

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Keeper is the launcher's side.
type Keeper struct {
	cmd    *exec.Cmd
	conn   *net.UnixConn
	events chan Event
	done   chan struct{} // the reader has ended
	quit   chan struct{} // closed by Close
	once   sync.Once
	err    error

	mu sync.Mutex // one request after the other; held for the write of a frame

	// Of what the keeper has started, for the case that it is killed; read's until done is closed.
	workers map[int]bool // processes that lead sessions
	marks   marks

	begun time.Time // when the keeper began, at the latest; of the goroutine that reads
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

// Start starts a keeper. argv is a command line that leads to [Main].
func Start(argv []string) (*Keeper, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("keeper: socket pair: %w", err)
	}
	syscall.CloseOnExec(fds[0])
	syscall.CloseOnExec(fds[1])
	theirs := os.NewFile(uintptr(fds[1]), "keeper")
	defer func() { _ = theirs.Close() }()
	ours := os.NewFile(uintptr(fds[0]), "launcher")
	generic, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	conn, ok := generic.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("keeper: the socket is a %T", generic)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	cmd := exec.Command(self) //nolint:noctx,gosec // it ends with its socket; our own program
	cmd.Args = argv
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("keeper: start %s: %w", self, err)
	}
	k := &Keeper{cmd: cmd, conn: conn, events: make(chan Event, 64), done: make(chan struct{}), quit: make(chan struct{}), workers: map[int]bool{}}
	go k.read()
	return k, nil
}

// PID is the keeper's process.
func (k *Keeper) PID() int { return k.cmd.Process.Pid }

// Events are what the keeper reports, in order. The channel is closed when the keeper is gone, after [Keeper.Close] or
// by itself.
func (k *Keeper) Events() <-chan Event { return k.events }

func (k *Keeper) read() {
	defer close(k.done)
	defer close(k.events)
	for replies := json.NewDecoder(k.conn); ; {
		var e Event
		failpoint.At("keeper.client.read")
		if replies.Decode(&e) != nil {
			return
		}
		switch {
		case e.Started != nil:
			e.Started.At = k.at(e.Started.After)
			k.workers[e.Started.PID] = true
		case e.Exited != nil:
			e.Exited.At = k.at(e.Exited.After)
			delete(k.workers, e.Exited.PID)
		}
		select {
		case k.events <- e:
		case <-k.quit:
			return
		}
	}
}

// at returns when something happened that the keeper saw so long after its beginning. Wall times in its reports would have no meaning once
// somebody has set the clock of the machine. When it began is known from its reports: none arrives before what it reports.
func (k *Keeper) at(after time.Duration) time.Time {
	if begun := time.Now().Add(-after); k.begun.IsZero() || begun.Before(k.begun) {
		k.begun = begun
	}
	return k.begun.Add(after)
}

// Spawn asks for a worker with these descriptors as its standard input, output and error output. The answer is a
// [Started] or a [Refused] with this ID.
func (k *Keeper) Spawn(id int, c Command, files [3]*os.File) error {
	k.marks.add(c.Mark)
	return k.request(request{Start: newStartRequest(id, c)}, files[:]...)
}

// Send sends a signal to the process groups of workers. Those that have ended are skipped.
func (k *Keeper) Send(ids []int, sig int) error {
	return k.request(request{Send: &signalRequest{ids, sig}})
}

// Sweep kills everything below the keeper but the workers that live. Gentle leaves leftovers time to end by themselves
// after SIGTERM. The answer is a [Swept].
func (k *Keeper) Sweep(gentle bool) error { return k.request(request{Sweep: &sweepRequest{gentle}}) }

// Remove has the keeper remove folders when the launcher and everything below the keeper is gone: a launcher that is killed cannot. A
// keeper that is gone itself is noticed by its events.
func (k *Keeper) Remove(folders []string) {
	_ = k.request(request{Remove: &removeRequest{convert[[]byte](folders)}})
}

func (k *Keeper) request(r request, files ...*os.File) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	if len(body) > maxFrame {
		return fmt.Errorf("keeper: arguments and environment of a worker take %d bytes; at most %d fit", len(body), maxFrame)
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
	failpoint.At("keeper.client.lock")
	k.mu.Lock()
	defer k.mu.Unlock()
	failpoint.At("keeper.client.write")
	n, _, err := k.conn.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = k.conn.Write(frame[n:])
	}
	if err != nil {
		return fmt.Errorf("keeper: it is gone: %w", err)
	}
	return nil
}

// Close ends the keeper and with it everything below it, and waits until that is done.
func (k *Keeper) Close() error {
	k.once.Do(func() {
		close(k.quit)
		_ = k.conn.CloseWrite()
		late := time.AfterFunc(closeTime, func() { _ = k.cmd.Process.Kill() }) // it is stopped, for example
		err := k.cmd.Wait()
		late.Stop()
		_ = k.conn.Close()
		<-k.done
		if err != nil {
			// The keeper was killed: nobody else knows what it had below it.
			k.err = errors.Join(fmt.Errorf("keeper: %w", err), k.sweepOrphans())
		}
	})
	return k.err
}

// sweepOrphans kills what a keeper that was killed has left behind, and nothing else that this process may have started.
func (k *Keeper) sweepOrphans() error {
	for pid := range k.workers {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	killed, left := sweep(func() []int { return started(k.workers, k.marks.list()) }, false, func() bool { return true })
	if left > 0 {
		return fmt.Errorf("%d of %d processes that it left do not end", left, killed)
	}
	return nil
}

// dropped closes descriptors that nobody has asked for.
func dropped(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

var errShort = io.ErrUnexpectedEOF
