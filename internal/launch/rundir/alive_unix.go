// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// aliveFile is a file in the folder of sockets that the launcher and the supervisor of a run have locked. When both have ended, in
// whatever way, the kernel has released it, and another launcher may remove what is left of the run.
const aliveFile = "alive"

// record is what the file says.
type record struct {
	// Machine is the one where the locks mean something: a folder of log files may be on several.
	Machine string `json:"machine"`
	// Passing are the folders to remove.
	Passing []string `json:"passing"`
}

const (
	// maxRecord bounds what is read of such a file, maxDead the runs that are looked at.
	maxRecord, maxDead = 64 << 10, 1000
)

// hold makes the file. It has its name only when it is locked. Where files cannot be locked there is none, and the run is never swept.
func (d *Dir) hold() {
	name := filepath.Join(d.Control, aliveFile)
	f, err := os.OpenFile(name+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // in our folder
	if err != nil {
		return
	}
	text, err := json.Marshal(record{machine(), d.passing})
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	}
	if err == nil {
		_, err = f.Write(text)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		_ = os.Remove(name + ".new")
		_ = f.Close()
		return
	}
	d.alive = f
}

// Alive is the file that says that the run lives, "" if there is none.
func (d *Dir) Alive() string {
	if d.alive == nil {
		return ""
	}
	return filepath.Join(d.Control, aliveFile)
}

// Hold locks the file of a run until this process ends or what it returns is closed.
func Hold(name string) (io.Closer, error) {
	f, err := os.Open(name) //nolint:gosec // the launcher's own file
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return f, nil
}

// Dead is the folder of a run whose launcher and supervisor have ended without removing what is not needed any more.
type Dead struct {
	// Path is that of the run.
	Path    string
	passing []string
	file    *os.File // locked: no other launcher sweeps it
}

// FindDead returns the dead runs of this user whose folders are in a folder for temporary files, in base, or among paths. Each must be
// closed.
func FindDead(base string, paths []string) []*Dead {
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		found, _ := filepath.Glob(filepath.Join(dir, temporaryPrefix+"*", "*", "control", aliveFile))
		for _, file := range found {
			paths = append(paths, filepath.Dir(filepath.Dir(file)))
		}
	}
	if base != "" {
		found, _ := filepath.Glob(filepath.Join(base, "*", "control", aliveFile))
		for _, file := range found {
			paths = append(paths, filepath.Dir(filepath.Dir(file)))
		}
	}
	slices.Sort(paths)
	var all []*Dead
	for _, path := range slices.Compact(paths)[:min(len(paths), maxDead)] {
		if d := openDead(path); d != nil {
			all = append(all, d)
		}
	}
	return all
}

// openDead locks the file of a run, and returns nil if that is not a dead one of this user on this machine.
func openDead(path string) *Dead {
	if !filepath.IsAbs(path) || !owned(path) || !owned(filepath.Join(path, "control")) {
		return nil
	}
	name := filepath.Join(path, "control", aliveFile)
	f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // in a folder of this user
	if err != nil {
		return nil
	}
	d := &Dead{Path: path, file: f}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || !d.read(name) {
		_ = f.Close()
		return nil
	}
	return d
}

// read reads the file, which must still be the one of that name.
func (d *Dead) read(name string) bool {
	opened, err := d.file.Stat()
	named, gone := os.Lstat(name)
	if err != nil || gone != nil || !os.SameFile(opened, named) || !opened.Mode().IsRegular() || opened.Size() > maxRecord {
		return false
	}
	var r record
	text, err := io.ReadAll(io.LimitReader(d.file, maxRecord))
	if err != nil || json.Unmarshal(text, &r) != nil || r.Machine != machine() {
		return false
	}
	base := filepath.Dir(d.Path)
	for _, path := range r.Passing {
		whole := path == base && strings.HasPrefix(filepath.Base(base), temporaryPrefix) && owned(base)
		if whole || path == filepath.Join(d.Path, "control") || path == filepath.Join(d.Path, "python") {
			d.passing = append(d.passing, path)
		}
	}
	return true
}

// Remove removes what the run did not need any more.
func (d *Dead) Remove() error {
	var err error
	for _, path := range d.passing {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// Close lets others look at the run.
func (d *Dead) Close() { _ = d.file.Close() }

// owned reports whether a path is a folder of this user, not a link to one.
func owned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}

// machine names this machine since it was started, or just the machine where that is not known.
func machine() string {
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return strings.TrimSpace(string(id))
	}
	name, _ := os.Hostname()
	return name
}
