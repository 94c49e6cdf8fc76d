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
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/program"
	"github.com/cohort-dist/cohort/internal/launch/rundir"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// socketFD is where a supervisor finds its socket: the first of exec.Cmd's extra files.
const socketFD = 3

// Main is the supervisor's program. It returns its exit code when the launcher has ended and everything below it has been
// killed.
func Main() int {
	// The kernel sends the parent-death signal of the workers when the thread that started them ends.
	runtime.LockOSThread()
	adopt()
	keepFiles()
	keepSignals()
	file := os.NewFile(socketFD, "launcher")
	generic, err := net.FileConn(file)
	_ = file.Close()
	conn, ok := generic.(*net.UnixConn)
	if err != nil || !ok {
		return 2 // started by hand
	}
	s := &server{
		conn: conn, replies: json.NewEncoder(conn), workers: map[int]int{}, ids: map[int]int{}, environ: os.Environ(),
		begun: time.Now(),
	}
	requests, closed := make(chan delivery), make(chan struct{})
	go readRequests(conn, requests, closed)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		failpoint.At("supervisor.server.select")
		select {
		case r := <-requests:
			s.serve(r)
		case <-ended:
			s.reap()
		case <-closed:
			for pid := range s.ids {
				_ = syscall.Kill(-pid, syscall.SIGKILL)
			}
			_, left := sweep(s.below(nil), false, s.more)
			for _, folder := range s.folders {
				_ = os.RemoveAll(folder)
			}
			if left > 0 {
				return 1
			}
			return 0
		}
	}
}

// keepSignals has the supervisor survive signals. They are caught, not ignored: an ignored signal would be ignored by the
// workers too. SIGHUP stays ignored if it was so from the start (nohup), for the supervisor and the workers; the other signals have their
// effect in the workers even if a shell ignores them for what it starts in the background.
func keepSignals() {
	caught := make(chan os.Signal, 1)
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGXCPU,
	} {
		if s != syscall.SIGHUP || !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
}

// server is the supervisor's state. One goroutine owns it.
type server struct {
	conn    *net.UnixConn
	replies *json.Encoder
	workers map[int]int // process of each worker that lives, by ID
	ids     map[int]int // and the other way round
	environ []string
	folders []string // to remove at the end
	held    io.Closer
	begun   time.Time
}

// delivery is a request with the descriptors that came with it.
type delivery struct {
	request
	fds []int
}

// readRequests takes requests from the socket until it ends.
func readRequests(conn *net.UnixConn, requests chan<- delivery, closed chan<- struct{}) {
	defer close(closed)
	in := framed{conn: conn}
	for {
		d, err := in.next()
		if err != nil {
			dropped(in.fds)
			return
		}
		requests <- d
	}
}

// framed takes frames and descriptors apart. Descriptors arrive with the bytes they were sent with, so that those of a
// frame are complete when the frame is.
type framed struct {
	conn *net.UnixConn
	buf  []byte
	fds  []int
}

func (f *framed) next() (delivery, error) {
	var d delivery
	if err := f.fill(4); err != nil {
		return d, err
	}
	size := int(binary.LittleEndian.Uint32(f.buf))
	if size > maxFrame {
		return d, fmt.Errorf("supervisor: a frame of %d bytes", size)
	}
	if err := f.fill(4 + size); err != nil {
		return d, err
	}
	if err := json.Unmarshal(f.buf[4:4+size], &d.request); err != nil {
		return d, fmt.Errorf("supervisor: %w", err)
	}
	f.buf = append(f.buf[:0], f.buf[4+size:]...)
	if d.Start != nil {
		if len(f.fds) < 3 {
			return d, errShort
		}
		d.fds, f.fds = f.fds[:3:3], f.fds[3:]
	}
	return d, nil
}

func (f *framed) fill(n int) error {
	piece, rights := make([]byte, 64<<10), make([]byte, 4096)
	for len(f.buf) < n {
		got, rightsLen, _, _, err := f.conn.ReadMsgUnix(piece, rights)
		if err != nil {
			return err
		}
		if got == 0 {
			return errShort
		}
		f.buf = append(f.buf, piece[:got]...)
		messages, err := syscall.ParseSocketControlMessage(rights[:rightsLen])
		if err != nil {
			return err
		}
		for _, m := range messages {
			fds, err := syscall.ParseUnixRights(&m)
			if err != nil {
				return err
			}
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
			}
			f.fds = append(f.fds, fds...)
		}
	}
	return nil
}

func (s *server) serve(d delivery) {
	switch {
	case d.Start != nil:
		s.start(d.Start.ID, d.Start.command(), d.fds)
		dropped(d.fds)
	case d.Send != nil:
		for _, id := range d.Send.IDs {
			if pid, lives := s.workers[id]; lives {
				// The group: the worker leads it, and has not been waited for, so the number is its own.
				_ = syscall.Kill(-pid, syscall.Signal(d.Send.Signal))
			}
		}
	case d.Sweep != nil:
		killed, left := sweep(s.below(s.ids), d.Sweep.Gentle, s.more)
		s.reply(Event{Swept: &swept{Killed: killed, Left: left}})
	case d.Remove != nil:
		s.folders = append(s.folders, convert[string](d.Remove.Folders)...)
	case d.Hold != nil:
		if held, err := rundir.Hold(string(d.Hold.File)); err == nil {
			s.held = held // to the end of this process
		}
	}
}

// reply reports to the launcher. When that has ended, the requests end.
func (s *server) reply(e Event) { _ = s.replies.Encode(e) }

func (s *server) start(id int, c Command, fds []int) {
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: merge(s.environ, c.Set), Files: make([]uintptr, len(fds)), Sys: workerAttr()}
	for i, fd := range fds {
		attr.Files[i] = uintptr(fd)
	}
	path, err := lookPath(c.Args, attr.Env, c.Dir)
	if err == nil {
		err = checkFolder(c.Dir)
	}
	pid := 0
	if err == nil {
		pid, err = onCPUs(c.CPUs, func() (int, error) {
			child, failed := syscall.ForkExec(path, c.Args, attr) //nolint:gosec // starting what it is asked for is its purpose
			if failed != nil {
				failed = fmt.Errorf("%s: %w", path, failed)
			}
			return child, failed
		})
	}
	if err != nil {
		s.reply(Event{Refused: &refused{ID: id, Error: err.Error()}})
		return
	}
	s.workers[id], s.ids[pid] = pid, id
	s.reply(Event{Started: &startedWorker{ID: id, PID: pid, After: time.Since(s.begun)}})
}

// checkFolder says what the kernel does not distinguish from a program that is missing.
func checkFolder(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return fmt.Errorf("the folder to run it in, %s: %w", dir, bare(err))
	}
	return nil
}

// bare returns an error without the operation and the path.
func bare(err error) error {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	return err
}

// merge returns the environment with the variables of set in place of older ones.
func merge(environ, set []string) []string {
	names := make(map[string]bool, len(set))
	for _, v := range set {
		name, _, _ := strings.Cut(v, "=")
		names[name] = true
	}
	out := make([]string, 0, len(environ)+len(set))
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); !names[name] {
			out = append(out, v)
		}
	}
	return append(out, set...)
}

// lookPath finds the program as a shell in the worker's environment would.
func lookPath(args, env []string, dir string) (string, error) {
	if len(args) == 0 || args[0] == "" {
		return "", errors.New("no program")
	}
	name := args[0]
	path := ""
	for _, v := range env {
		if p, found := strings.CutPrefix(v, "PATH="); found {
			path = p
		}
	}
	return program.Find(name, path, dir)
}

// reap takes in every child that has ended, workers and those that the workers left behind.
func (s *server) reap() {
	for {
		var status syscall.WaitStatus
		var used syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &used)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		id, worker := s.ids[pid]
		if !worker {
			continue
		}
		delete(s.ids, pid)
		delete(s.workers, id)
		code := status.ExitStatus()
		if status.Signaled() {
			code = -int(status.Signal())
		}
		s.reply(Event{Exited: &Exited{
			ID: id, PID: pid, After: time.Since(s.begun), Code: code,
			//nolint:unconvert // 32 bits on some systems
			CPU: time.Duration(used.Utime.Nano() + used.Stime.Nano()), RSS: int64(used.Maxrss) * rssUnit,
		}})
	}
}

// below lists the descendants of the supervisor, except those in spare.
func (s *server) below(spare map[int]int) func() []int {
	return func() []int { return descendants(os.Getpid(), spare) }
}

// more takes in the children that have ended and reports whether there are others.
func (s *server) more() bool {
	s.reap()
	return anyChild()
}

// sweep kills the processes that list returns until there are none. more is asked first, and may know that.
func sweep(list func() []int, gentle bool, more func() bool) (killed, left int) {
	seen := map[int]bool{}
	deadline := time.Now().Add(sweepTime)
	sig := syscall.SIGKILL
	if gentle {
		sig = syscall.SIGTERM
	}
	gentleEnd := time.Now().Add(gentleTime)
	pause := time.Millisecond
	for {
		if !more() {
			return len(seen), 0
		}
		all := list()
		if len(all) == 0 {
			return len(seen), 0
		}
		if gentle && time.Now().After(gentleEnd) {
			gentle, sig = false, syscall.SIGKILL
			deadline = time.Now().Add(sweepTime)
		}
		if !gentle && time.Now().After(deadline) {
			return len(seen), len(all)
		}
		for _, pid := range all {
			if !seen[pid] || sig == syscall.SIGKILL {
				seen[pid] = true
				_ = syscall.Kill(pid, sig)
			}
		}
		time.Sleep(pause) //nolint:forbidigo // children of children end without notifying this process
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// anyChild reports whether this process has a child, dead or alive.
func anyChild() bool {
	_, err := waitPeek()
	return !errors.Is(err, syscall.ECHILD)
}
