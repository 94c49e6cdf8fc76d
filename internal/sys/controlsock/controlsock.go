// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package controlsock lets the user who owns a Go process ask it what it is doing, over a socket in a folder that no other user
// can access. "cohort run" makes such a folder for its workers; without it, COHORT_DUMP_DIR names one.
//
// A question is one line; the answer is everything up to the end of the connection.
package controlsock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// The variables that name a folder.
const (
	EnvRun  = "COHORT_RUN"
	EnvDump = "COHORT_DUMP_DIR"
)

const (
	// folder is the name of the folder of sockets, below those that the variables name.
	folder = "control"
	// answerTime bounds a conversation.
	answerTime = 15 * time.Second
	// maxAnswer bounds an answer that is read, maxStacks the stacks of a process.
	maxAnswer, maxStacks = 64 << 20, 1 << 20
	// maxAsking bounds the questions that are answered at a time.
	maxAsking = 8
	// maxQuestion bounds a question.
	maxQuestion = 4096
)

// Folder returns the folder of sockets of processes with these variables, "" if there is none.
func Folder(getenv func(string) string) string {
	for _, name := range []string{EnvRun, EnvDump} {
		if dir := getenv(name); dir != "" {
			return filepath.Join(dir, folder)
		}
	}
	return ""
}

// Make makes the folder of sockets below dir and returns it.
func Make(dir string) (string, error) {
	dir = filepath.Join(dir, folder)
	return dir, os.MkdirAll(dir, 0o700) //nolint:gosec // the user names it
}

// own returns the folder of this process, "" if there is none. That of a launcher is there already.
func own() (string, error) {
	if dir := os.Getenv(EnvDump); os.Getenv(EnvRun) == "" && dir != "" {
		return Make(dir)
	}
	return Folder(os.Getenv), nil
}

// Answers are what a server answers, by question.
type Answers map[string]func(ctx context.Context) ([]byte, error)

// Stacks answers with the stacks of all goroutines.
func Stacks(context.Context) ([]byte, error) {
	for size := 64 << 10; ; size *= 4 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= maxStacks {
			return buf[:n], nil
		}
	}
}

// Server answers questions about this process.
type Server struct {
	listener net.Listener
	answers  Answers
	path     string
	life     context.Context //nolint:containedctx // it ends with Close
	end      context.CancelFunc
	running  sync.WaitGroup
	asking   chan struct{}
}

// ServeOwn answers questions about this process where its owner looks for it. It returns nil without such a place: the
// process was started neither by "cohort run" nor with [EnvDump].
func ServeOwn(answers Answers) (*Server, error) {
	dir, err := own()
	if dir == "" || err != nil {
		return nil, err
	}
	return Serve(dir, Name(os.Getpid(), time.Now().UnixNano()), answers)
}

// Serve makes a socket of this name in a folder and answers until Close.
func Serve(dir, name string, answers Answers) (*Server, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 { // every user who may enter the folder may ask
		return nil, fmt.Errorf("control: others than its owner may enter %s: %w", dir, os.ErrPermission)
	}
	short, release, err := shorten(dir)
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.Listen("unix", filepath.Join(short, name)) //nolint:noctx // it ends with the server
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // its path may be one that means nothing by then
	}
	s := &Server{listener: l, answers: answers, path: filepath.Join(dir, name), asking: make(chan struct{}, maxAsking)}
	s.life, s.end = context.WithCancel(context.Background())
	s.running.Go(s.accept)
	return s, nil
}

// Close ends the server and waits for its answers. A nil server may be closed.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.end()
	_ = s.listener.Close()
	s.running.Wait()
	_ = os.Remove(s.path)
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			if s.life.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, for example
			case <-time.After(100 * time.Millisecond):
				continue
			case <-s.life.Done():
				return
			}
		}
		failpoint.At("controlsock.accept")
		select {
		case s.asking <- struct{}{}:
			s.running.Go(func() {
				defer func() { <-s.asking }()
				s.answer(c)
			})
		default:
			_ = c.Close()
		}
	}
}

func (s *Server) answer(c net.Conn) {
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(s.life, answerTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	line, err := bufio.NewReaderSize(io.LimitReader(c, maxQuestion), maxQuestion).ReadString('\n')
	if err != nil {
		return
	}
	failpoint.At("controlsock.answer")
	answer, known := s.answers[strings.TrimSpace(line)]
	if !known {
		return
	}
	if data, err := answer(ctx); err == nil {
		_, _ = c.Write(data)
	}
}

// Ask asks the servers of a folder whose names begin with prefix, and returns what each has answered. Servers that are
// gone or do not answer are left out.
func Ask(ctx context.Context, dir, prefix, question string) [][]byte {
	short, release, err := shorten(dir)
	if err != nil {
		return nil
	}
	defer release()
	entries, err := os.ReadDir(short)
	if err != nil {
		return nil
	}
	var all [][]byte
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || ctx.Err() != nil {
			continue
		}
		if data, err := ask(ctx, filepath.Join(short, e.Name()), question); err == nil && len(data) > 0 {
			all = append(all, data)
		}
	}
	return all
}

func ask(ctx context.Context, path, question string) ([]byte, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	if _, err := io.WriteString(c, question+"\n"); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(c, maxAnswer)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// longest is a path that fits into the address of a socket on every system, with the name of a socket to come.
const longest = 60

// shorten returns a path of a folder that is short enough for the address of a socket, valid until release.
func shorten(dir string) (short string, release func(), err error) {
	if len(dir) <= longest || runtime.GOOS != "linux" {
		return dir, func() {}, nil
	}
	f, err := os.Open(dir) //nolint:gosec // a folder that the job itself names
	if err != nil {
		return "", nil, fmt.Errorf("control: %w", err)
	}
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())), func() { _ = f.Close() }, nil
}

// Name is the name of a socket of this process; number tells those of one process apart.
func Name(pid int, number int64) string { return Prefix(pid) + strconv.FormatInt(number, 10) }

// Prefix is what the names of the sockets of a process begin with.
func Prefix(pid int) string { return strconv.Itoa(pid) + "." }
