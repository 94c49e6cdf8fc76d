// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Users asks questions about processes of other users, and of containers, by helpers: each is a process with the user, the network and
// the files of the process that it asks about. Only root needs it.
type Users struct {
	// start starts a helper for a process: one that calls [ServeQuestions] as the user and in the namespaces of that process.
	start func(pid int) (helperProcess, error)

	mu struct {
		sync.Mutex

		helpers map[string]asker
	}
}

// helperProcess is a process that serves questions at the two ends of a pipe.
type helperProcess struct {
	in  io.WriteCloser
	out io.Reader
	end func() string // ends it, and returns what it has written to its stderr
}

// maxReply bounds a line that a helper sends, and maxHelpers how many there are.
const maxReply, maxHelpers = 64 << 20, 64

// beginTime bounds the wait for a helper to start.
const beginTime = 5 * time.Second

// NewUsers returns Users whose helpers are processes of this program with the given arguments and the number of a process: they are to call
// [BecomeUser].
func NewUsers(args ...string) *Users {
	return &Users{start: func(pid int) (helperProcess, error) { return startHelper(append(args, strconv.Itoa(pid))) }}
}

// Assign has the questions about the ranks of jobs be asked by helpers where this process must not ask itself. What cannot be asked is
// said in the notes of the job.
func (u *Users) Assign(jobs []Job) {
	for i := range jobs {
		j := &jobs[i]
		said := map[string]bool{}
		for k := range j.Ranks {
			as, note := u.of("/proc", j.Ranks[k].PID)
			if j.Ranks[k].as = as; note != "" && !said[note] {
				said[note] = true
				j.Notes = append(j.Notes, note)
			}
		}
	}
}

// of returns who asks about a process; nil if this process may.
func (u *Users) of(proc string, pid int) (asker, string) {
	other, err := placeOf(proc, pid)
	switch {
	case err != nil:
		return silent{}, "" // it has exited, and whose it was is not known any more
	case !other.differs:
		return nil, ""
	}
	key := fmt.Sprintf("%d %s %s", other.uid, other.network, other.mounts)
	u.mu.Lock()
	defer u.mu.Unlock()
	if h := u.mu.helpers[key]; h != nil {
		return h, ""
	}
	var h asker = silent{}
	note := ""
	if len(u.mu.helpers) >= maxHelpers {
		err = errors.New("there are too many users")
	} else if started, failed := u.begin(pid, other.inside); failed != nil {
		err = failed
	} else {
		h = started
	}
	if err != nil {
		note = fmt.Sprintf("what processes of user %d name, such as the store, was not asked: %v; run this command as that user",
			other.uid, err)
	}
	if u.mu.helpers == nil {
		u.mu.helpers = map[string]asker{}
	}
	u.mu.helpers[key] = h
	return h, note
}

// begin starts a helper and waits until it serves.
func (u *Users) begin(pid int, inside bool) (*helper, error) {
	p, err := u.start(pid)
	if err != nil {
		return nil, err
	}
	h := newHelper(p, inside)
	ctx, cancel := context.WithTimeout(context.Background(), beginTime)
	defer cancel()
	if h.ask(ctx, question{What: askNothing}).Yes {
		return h, nil
	}
	words := cmp.Or(printable.Line(h.close()), "it does not answer")
	return nil, fmt.Errorf("the process that asks for that user did not start: %.200s", words)
}

// Close ends the helpers.
func (u *Users) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range u.mu.helpers {
		if h, ok := a.(*helper); ok {
			h.close()
		}
	}
	u.mu.helpers = nil
}

// silent has no answers.
type silent struct{}

func (silent) ask(context.Context, question) answer { return answer{} }

// helper asks a process.
type helper struct {
	process helperProcess
	inside  bool // it knows processes by the numbers that they have in its namespace
	done    chan struct{}
	writing sync.Mutex // of in; answers are read meanwhile

	mu struct {
		sync.Mutex

		last    int
		waiting map[int]chan answer
		ended   bool
	}
}

// numbered is a question or an answer on its way.
type numbered struct {
	Number   int           `json:"number"`
	Question *question     `json:"question,omitempty"`
	Limit    time.Duration `json:"limit_ns,omitempty"`
	Answer   *answer       `json:"answer,omitempty"`
}

func newHelper(p helperProcess, inside bool) *helper {
	h := &helper{process: p, inside: inside, done: make(chan struct{})}
	h.mu.waiting = map[int]chan answer{}
	go func() {
		defer close(h.done)
		h.read()
	}()
	return h
}

// read takes the answers until there are no more.
func (h *helper) read() {
	lines := bufio.NewScanner(h.process.out)
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		var n numbered
		if printable.Unmarshal(lines.Bytes(), &n) != nil || n.Answer == nil {
			break
		}
		h.mu.Lock()
		ch := h.mu.waiting[n.Number]
		delete(h.mu.waiting, n.Number)
		h.mu.Unlock()
		if ch != nil {
			ch <- *n.Answer // it has room for one
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.ended = true
	for n, ch := range h.mu.waiting {
		delete(h.mu.waiting, n)
		close(ch)
	}
}

func (h *helper) ask(ctx context.Context, q question) answer {
	if h.inside {
		q.PID = ownPID("/proc", q.PID)
	}
	n := numbered{Question: &q, Limit: time.Minute}
	if end, ok := ctx.Deadline(); ok {
		n.Limit = time.Until(end)
	}
	ch := make(chan answer, 1)
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.mu.waiting, n.Number)
	}()
	if !h.send(&n, ch) {
		return answer{}
	}
	select {
	case a := <-ch: // none if the helper has ended
		return a
	case <-ctx.Done():
		return answer{}
	}
}

// send sends a question that is answered on ch.
func (h *helper) send(n *numbered, ch chan answer) bool {
	h.mu.Lock()
	if h.mu.ended {
		h.mu.Unlock()
		return false
	}
	h.mu.last++
	n.Number = h.mu.last
	h.mu.waiting[n.Number] = ch
	h.mu.Unlock()
	line, err := json.Marshal(n)
	if err == nil {
		h.writing.Lock()
		defer h.writing.Unlock()
		_, err = h.process.in.Write(append(line, '\n'))
	}
	return err == nil
}

func (h *helper) close() string {
	_ = h.process.in.Close()
	words := h.process.end()
	<-h.done
	return words
}

// maxQuestions bounds the questions that are asked at a time.
const maxQuestions = 64

// ServeQuestions answers the questions that come in until their end, as a helper of [Users] does.
func ServeQuestions(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	var writing sync.Mutex
	room := make(chan struct{}, maxQuestions)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		var n numbered
		if err := json.Unmarshal(lines.Bytes(), &n); err != nil || n.Question == nil {
			return errors.Join(errors.New("jobscan: this is not a question"), err)
		}
		room <- struct{}{}
		asked.Go(func() {
			defer func() { <-room }()
			limited, cancel := context.WithTimeout(ctx, n.Limit)
			defer cancel()
			a := directly(limited, *n.Question)
			line, err := json.Marshal(numbered{Number: n.Number, Answer: &a})
			if err != nil || len(line) >= maxReply {
				line, _ = json.Marshal(numbered{Number: n.Number, Answer: &answer{}}) //nolint:errchkjson // an empty one
			}
			writing.Lock()
			defer writing.Unlock()
			_, _ = out.Write(append(line, '\n'))
		})
	}
	return lines.Err()
}

// place is whose a process is, and where it is.
type place struct {
	uid, gid        int
	groups          []int
	network, mounts string // namespaces, "" if they are not known
	differs         bool   // from this process
	inside          bool   // the mounts differ
}
