// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package controlsock

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAskAndAnswer(t *testing.T) {
	t.Parallel()
	for name, below := range map[string]string{"short": "", "long": strings.Repeat("folder/", 20)} {
		base, err := os.MkdirTemp("", "ctl") //nolint:usetesting // t.TempDir is too long for the first case
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(base) })
		dir, err := Make(filepath.Join(base, below))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Serve(dir, Name(7, 1), Answers{
			"stacks": Stacks,
			"fail":   func(context.Context) ([]byte, error) { return nil, errors.New("no") },
			"wait":   func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() },
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if got := Ask(ctx, dir, Prefix(7), "stacks"); len(got) != 1 || !strings.Contains(string(got[0]), "TestAskAndAnswer") {
			t.Errorf("%s: %d answers: %s", name, len(got), got)
		}
		for _, q := range []string{"fail", "nonsense", strings.Repeat("x", 2*maxQuestion), ""} {
			if got := Ask(ctx, dir, Prefix(7), q); len(got) != 0 {
				t.Errorf("%s: %q is answered by %q", name, q, got)
			}
		}
		if got := Ask(ctx, dir, Prefix(8), "stacks"); len(got) != 0 {
			t.Errorf("%s: another process's answer is %q", name, got)
		}
		s.Close()
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: %v is left", name, left)
		}
		if got := Ask(ctx, dir, Prefix(7), "stacks"); len(got) != 0 {
			t.Errorf("%s: after Close it answers %q", name, got)
		}
	}
}

// TestCloseEndsConversations: neither a question that does not arrive nor an answer that takes long delays Close.
func TestCloseEndsConversations(t *testing.T) {
	t.Parallel()
	base, err := os.MkdirTemp("", "ctl") //nolint:usetesting // t.TempDir is too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	dir, err := Make(base)
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	s, err := Serve(dir, "x", Answers{"wait": func(ctx context.Context) ([]byte, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("unix", filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	asked := make(chan [][]byte, 1)
	go func() { asked <- Ask(context.Background(), dir, "x", "wait") }()
	<-begun
	from := time.Now()
	s.Close()
	if took := time.Since(from); took > answerTime-time.Second {
		t.Errorf("Close took %v", took)
	}
	if got := <-asked; len(got) != 0 {
		t.Errorf("the answer is %q", got)
	}
}

// TestOthersMayNotEnter: a folder that is open to others is not used.
func TestOthersMayNotEnter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if s, err := Serve(dir, "x", nil); !errors.Is(err, os.ErrPermission) {
		s.Close()
		t.Errorf("error %v", err)
	}
}
