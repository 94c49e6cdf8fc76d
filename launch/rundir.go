// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cohort-dist/cohort/internal/control"
)

//go:embed shim/sitecustomize.py
var shimSource []byte

// runDir is the folder of one run: torchrun's layout of log files, error files, and the shim.
type runDir struct {
	path      string // <log dir>/<run id>_<random>
	temporary string // what to remove at the end, or ""
	shim      string // the folder for PYTHONPATH, or ""
	control   string // the folder for the sockets of launcher and workers
	null      bool   // no files are wanted
}

// newRunDir makes the folder. With --log-dir /dev/null nothing is kept, and there are no error files, as with torchrun.
func newRunDir(c Config) (*runDir, error) {
	base, r := c.LogDir, &runDir{}
	if base == os.DevNull {
		base, r.null = "", true
	}
	if base == "" {
		tmp, err := os.MkdirTemp("", "cohort_run_")
		if err != nil {
			return nil, unavailable("a folder for this run", err)
		}
		base = tmp
		if !c.Redirects.any() && !c.Tee.any() {
			r.temporary = tmp // nobody wants to read it later
		}
	}
	abs, err := filepath.Abs(base)
	if err != nil {
		return nil, unavailable("a folder for this run", err)
	}
	r.path = filepath.Join(abs, c.RunID+"_"+randomID()[:8])
	if err = os.MkdirAll(r.path, 0o755); err != nil { //nolint:gosec // log files are read by others, as torchrun's are
		return nil, unavailable("a folder for this run", err)
	}
	if r.control, err = control.Make(r.path); err != nil {
		return nil, unavailable("a folder for this run", err)
	}
	if !c.NoShim {
		r.shim = filepath.Join(r.path, "python")
		err := os.Mkdir(r.shim, 0o755) //nolint:gosec // Python code is read by the workers
		if err == nil {
			err = os.WriteFile(filepath.Join(r.shim, "sitecustomize.py"), shimSource, 0o644) //nolint:gosec // as above
		}
		if err != nil {
			return nil, unavailable("a folder for this run", err)
		}
	}
	return r, nil
}

func (r *runDir) worker(attempt, local int) string {
	return filepath.Join(r.path, "attempt_"+strconv.Itoa(attempt), strconv.Itoa(local))
}

// errorFile is where @record writes the exception of a worker.
func (r *runDir) errorFile(attempt, local int) string {
	if r.null {
		return ""
	}
	return filepath.Join(r.worker(attempt, local), "error.json")
}

// prepare makes the folders of an attempt.
func (r *runDir) prepare(attempt, workers int) error {
	for local := range workers {
		if err := os.MkdirAll(r.worker(attempt, local), 0o755); err != nil { //nolint:gosec // as above
			return unavailable("a folder for this run", err)
		}
	}
	return nil
}

// create makes a log file of a worker.
func (r *runDir) create(attempt int, elements ...string) (*os.File, error) {
	if r.null {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	name := filepath.Join(append([]string{r.path, "attempt_" + strconv.Itoa(attempt)}, elements...)...)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o644) //nolint:gosec // a log file
	if err != nil {
		return nil, unavailable("a log file", err)
	}
	return f, nil
}

// close removes what is not wanted any more.
func (r *runDir) close() error {
	if r.temporary != "" {
		return os.RemoveAll(r.temporary)
	}
	err := os.RemoveAll(r.control)
	if r.shim != "" {
		err = errors.Join(err, os.RemoveAll(r.shim))
	}
	return err
}
