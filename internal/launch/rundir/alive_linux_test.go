// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// abandon lets go of a run as its launcher does that is killed.
func abandon(t *testing.T, d *Dir) {
	t.Helper()
	if d.alive == nil {
		t.Fatal("the run is not locked")
	}
	_ = d.alive.Close()
}

// found returns the paths of the dead runs, and closes them.
func found(base string, paths ...string) string {
	var all []string
	for _, d := range FindDead(base, paths) {
		all = append(all, d.Path)
		d.Close()
	}
	return strings.Join(all, " ")
}

// TestDead: a run is dead when all that have locked it have ended, and then what it does not need is removed; a run that lives, one of
// another machine and a link are not touched.
func TestDead(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	logs := filepath.Join(tmp, "logs")
	temporary, err := New(Options{RunID: "a", Shim: true})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := New(Options{RunID: "b", Base: logs, Shim: true})
	if err != nil {
		t.Fatal(err)
	}
	if err = kept.Prepare(0, 1); err != nil {
		t.Fatal(err)
	}
	supervisor, err := Hold(temporary.Alive())
	if err != nil {
		t.Fatal(err)
	}
	if got := found(logs, kept.Path); got != "" {
		t.Errorf("%s live", got)
	}
	abandon(t, temporary)
	abandon(t, kept)
	if got := found("", temporary.Path); got != "" {
		t.Errorf("%s lives in its supervisor", got)
	}
	_ = supervisor.Close()
	if got := found(""); got != temporary.Path {
		t.Errorf("dead: %s, want %s", got, temporary.Path)
	}
	dead := FindDead(logs, []string{temporary.Path, "relative", filepath.Join(tmp, "nothing")})
	if len(dead) != 2 {
		t.Fatalf("dead: %v", dead)
	}
	if got := found(logs); got != "" {
		t.Errorf("two launchers sweep %s", got)
	}
	for _, d := range dead {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
		d.Close()
	}
	if entries, _ := os.ReadDir(tmp); len(entries) != 1 {
		t.Errorf("left in the temporary folder: %v", entries)
	}
	if entries, _ := os.ReadDir(kept.Path); len(entries) != 1 || entries[0].Name() != "attempt_0" {
		t.Errorf("left of a run with log files: %v", entries)
	}
}

// TestNotDead: what a record says is believed only of this machine and only about the folders of the run.
func TestNotDead(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	precious := filepath.Join(tmp, "precious")
	if err := os.Mkdir(precious, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		dead bool
	}{
		"another machine": {`{"machine": "elsewhere", "passing": []}`, false},
		"no record":       {"{", false},
		"other folders":   {`{"machine": "` + machine() + `", "passing": ["` + precious + `", "/", "` + tmp + `"]}`, true},
	} {
		d, err := New(Options{RunID: "a", Base: filepath.Join(tmp, "logs")})
		if err != nil {
			t.Fatal(err)
		}
		abandon(t, d)
		if err := os.WriteFile(d.Alive(), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		all := FindDead("", []string{d.Path})
		if (len(all) == 1) != c.dead {
			t.Errorf("%s: %d dead runs", name, len(all))
		}
		for _, x := range all {
			if err := x.Remove(); err != nil {
				t.Error(err)
			}
			x.Close()
		}
		if _, err := os.Stat(d.Control); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		link := filepath.Join(tmp, "link")
		if err := os.Symlink(d.Path, link); err != nil {
			t.Fatal(err)
		}
		if got := found("", link); got != "" {
			t.Errorf("%s: a link is swept", name)
		}
		_ = os.Remove(link)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}
