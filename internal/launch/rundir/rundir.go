// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rundir is the folder of one run of a job: torchrun's layout of log files and error files, the sockets of launcher and
// workers, and the shim for Python workers.
package rundir

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

//go:embed shim/sitecustomize.py
var shimSource []byte

// temporaryPrefix begins the names of temporary folders.
const temporaryPrefix = "cohort_run_"

// Options say what a folder is for.
type Options struct {
	// Base is the folder of log files; "": a temporary one. With the null device nothing is kept, and there are no error files, as with
	// torchrun.
	Base  string
	RunID string
	// Keep says that a temporary folder is read later.
	Keep bool
	// Shim says that Python workers load the shim.
	Shim bool
	// Passing is called, before they are made, with the folders that are not needed after the run.
	Passing func(paths []string)
}

// Dir is the folder of one run.
type Dir struct {
	Path    string // <log dir>/<run id>_<random>
	Shim    string // the folder for PYTHONPATH, or ""
	Control string // the folder for the sockets of launcher and workers
	// Temporary says that all of it is removed at the end.
	Temporary bool

	passing []string // what to remove at the end
	null    bool     // no files are wanted
	alive   *os.File // locked, or nil
}

// New makes the folder.
func New(o Options) (*Dir, error) {
	base, d := o.Base, &Dir{}
	if base == os.DevNull {
		base, d.null = "", true
	}
	d.Temporary = base == "" && !o.Keep
	if base == "" {
		base = filepath.Join(temporary(), temporaryPrefix+random(10))
	}
	abs, err := filepath.Abs(base)
	if err != nil {
		return nil, err
	}
	d.Path = filepath.Join(abs, o.RunID+"_"+random(8))
	d.Control = controlsock.Folder(func(string) string { return d.Path })
	d.passing = []string{d.Control}
	if o.Shim {
		d.Shim = filepath.Join(d.Path, "python")
		d.passing = append(d.passing, d.Shim)
	}
	if d.Temporary {
		d.passing = []string{abs}
	}
	if o.Passing != nil {
		o.Passing(d.passing)
	}
	if err := d.make(o.Base == "" || d.null); err != nil {
		_ = d.Close() // what was not made cannot be removed either, and says no more
		return nil, err
	}
	d.hold()
	return d, nil
}

// temporary is the first folder for temporary files that can be written. As in Python, a TMPDIR that is not there, as in a batch job that
// inherited it from another machine, is passed over, and so is a full one.
func temporary() string {
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp", "."} {
		f, remove, err := tryFile(dir)
		if err != nil {
			continue
		}
		_, err = f.Write(shimSource) // what is going to be written there
		err = errors.Join(err, f.Close())
		if remove(); err == nil {
			return dir
		}
	}
	return os.TempDir()
}

// make makes the folders. Those of the run are for this user alone: logs have what the job prints, and its error files what it was given.
func (d *Dir) make(temporary bool) error {
	if temporary {
		if err := os.Mkdir(filepath.Dir(d.Path), 0o700); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(d.Path), 0o755); err != nil { //nolint:gosec // that of all runs is the user's
		return err
	}
	if err := os.Mkdir(d.Path, 0o700); err != nil {
		return err
	}
	if _, err := controlsock.Make(d.Path); err != nil {
		return err
	}
	if d.Shim == "" {
		return nil
	}
	if err := os.Mkdir(d.Shim, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(d.Shim, "sitecustomize.py"), shimSource, 0o600)
}

// random returns random letters and digits for names.
func random(n int) string { return strings.ToLower(rand.Text())[:n] }

func (d *Dir) worker(attempt, local int) string {
	return filepath.Join(d.Path, "attempt_"+strconv.Itoa(attempt), strconv.Itoa(local))
}

// ErrorFile is where @record writes the exception of a worker, "" if it is not wanted.
func (d *Dir) ErrorFile(attempt, local int) string {
	if d.null {
		return ""
	}
	return filepath.Join(d.worker(attempt, local), "error.json")
}

// maxError bounds what is read of a worker's exception.
const maxError = 1 << 20

// Error is what @record has written about the exception of a worker, nil if nothing.
func (d *Dir) Error(attempt, local int) []byte {
	name := d.ErrorFile(attempt, local)
	info, err := os.Stat(name)
	if err != nil || info.Size() > maxError || !info.Mode().IsRegular() {
		return nil
	}
	b, err := os.ReadFile(name) //nolint:gosec // the worker's error file
	if err != nil {
		return nil
	}
	return b
}

// Prepare makes the folders of an attempt.
func (d *Dir) Prepare(attempt, workers int) error {
	for local := range workers {
		if err := os.MkdirAll(d.worker(attempt, local), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// Create makes a log file of an attempt.
func (d *Dir) Create(attempt int, elements ...string) (*os.File, error) {
	if d.null {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	name := filepath.Join(append([]string{d.Path, "attempt_" + strconv.Itoa(attempt)}, elements...)...)
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600) //nolint:gosec // a log file of the run
}

// Close removes what is not wanted any more.
func (d *Dir) Close() error {
	var err error
	for _, path := range d.passing {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if d.alive != nil {
		_ = d.alive.Close()
	}
	return err
}
