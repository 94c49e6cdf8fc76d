// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// served returns a helper whose process is what serve does.
func served(t *testing.T, serve func(in io.Reader, out io.Writer) error) (h *helper, ended func() error) {
	t.Helper()
	asks, in := io.Pipe()
	out, says := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(asks, says)
		_ = says.Close()
		_ = asks.Close()
		done <- err
	}()
	ended = sync.OnceValue(func() error { return <-done })
	end := func() string { // as a process that is killed
		_ = says.Close()
		_ = asks.Close()
		return fmt.Sprint(ended())
	}
	h = newHelper(helperProcess{in: in, out: out, end: end}, false)
	t.Cleanup(func() { h.close() })
	return h, ended
}

// TestHelper: questions are answered, many at a time, and each gets its own answer.
func TestHelper(t *testing.T) {
	t.Parallel()
	h, _ := served(t, ServeQuestions)
	name := filepath.Join(t.TempDir(), "program.py")
	var text strings.Builder
	for n := range 200 {
		text.WriteString("line " + strconv.Itoa(n+1) + "\n")
	}
	if err := os.WriteFile(name, []byte(text.String()+"evil \x1b[2J\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 200 {
		all.Go(func() {
			want := "line " + strconv.Itoa(n+1)
			if a := h.ask(t.Context(), question{What: askLine, Path: name, Line: n + 1}); a.Said != want {
				t.Errorf("%q, want %q", a.Said, want)
			}
		})
	}
	all.Wait()
	if a := h.ask(t.Context(), question{What: askLine, Path: name, Line: 201}); a.Said != `evil \x1b[2J` {
		t.Errorf("%q", a.Said)
	}
	if a := h.ask(t.Context(), question{What: "what no version knows"}); a.Said != "" || a.Texts != nil {
		t.Errorf("%+v", a)
	}
}

// TestHelperThatFails: one that ends, sends nonsense or too much ends all questions, and there are no answers from then on.
func TestHelperThatFails(t *testing.T) {
	t.Parallel()
	once := func(say string) func(io.Reader, io.Writer) error {
		return func(in io.Reader, out io.Writer) error {
			if _, err := in.Read(make([]byte, 1<<10)); err != nil {
				return err
			}
			for range 1 + (maxReply+1)/(len(say)+1)*min(1, len(say)/1000) {
				if _, err := io.WriteString(out, say); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, say := range map[string]string{
		"ends": "", "nonsense": "{]\n", "no answer": `{"number":1}` + "\n", "another number": `{"number":7,"answer":{"said":"x"}}` + "\n",
		"too much": strings.Repeat("x", 1<<20),
	} {
		h, ended := served(t, once(say))
		for range 2 {
			if a := h.ask(t.Context(), question{What: askLine}); a.Said != "" {
				t.Errorf("%s: %+v", name, a)
			}
		}
		if name != "too much" { // nothing reads the rest of that
			_ = ended()
		}
	}
	if err := ServeQuestions(strings.NewReader("nonsense\n"), io.Discard); err == nil {
		t.Error("nonsense is a question")
	}
}

// TestUsersThatCannotBeAsked: it is said once, and nothing is asked.
func TestUsersThatCannotBeAsked(t *testing.T) {
	testkit.NeedOtherUser(t)
	proc := t.TempDir()
	for _, pid := range []string{"7", "8"} {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "status"),
			[]byte("Name:\tx\nUid:\t0\t65534\t0\t0\nGid:\t1\t2\t3\t4\nGroups:\t5 6 \n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := placeOf(proc, 7)
	if err != nil || p.uid != 65534 || p.gid != 2 || len(p.groups) != 2 || !p.differs {
		t.Errorf("%+v, %v", p, err)
	}
	u := &Users{start: func(int) (helperProcess, error) { return helperProcess{}, os.ErrPermission }}
	defer u.Close()
	as, note := u.of(proc, 7)
	if again, more := u.of(proc, 8); as != (silent{}) || again != as || more != "" || !strings.Contains(note, "of user 65534") {
		t.Errorf("%v %q, %v %q", as, note, again, more)
	}
	if a := (Rank{as: as}).ask(t.Context(), question{What: askLine, Path: "/etc/passwd", Line: 1}); a.Said != "" {
		t.Errorf("%+v", a)
	}
	ends := &Users{start: func(int) (helperProcess, error) {
		return helperProcess{in: nopCloser{io.Discard}, out: strings.NewReader(""), end: func() string { return "because\x1b" }}, nil
	}}
	if as, note = ends.of(proc, 7); as != (silent{}) || !strings.Contains(note, `did not start: because\x1b; run`) {
		t.Errorf("%v %q", as, note)
	}
	if as, note = u.of(proc, 9); as != (silent{}) || note != "" {
		t.Errorf("a process that has exited: %v %q", as, note)
	}
	if as, note = u.of("/proc", os.Getpid()); as != nil || note != "" {
		t.Errorf("this process: %v %q", as, note)
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// TestHelperIsClosed: a question that is never answered ends with the helper.
func TestHelperIsClosed(t *testing.T) {
	t.Parallel()
	h, _ := served(t, func(in io.Reader, _ io.Writer) error {
		_, err := io.Copy(io.Discard, in) // it never answers
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.ask(ctx, question{What: askLine}) // it ends with its context
	asked := make(chan answer)
	go func() { asked <- h.ask(t.Context(), question{What: askLine}) }()
	time.Sleep(10 * time.Millisecond)
	h.close()
	if a := <-asked; a.Said != "" {
		t.Errorf("%+v", a)
	}
}
