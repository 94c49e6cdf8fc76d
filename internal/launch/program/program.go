// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package program knows how a program of a job is run: whether Python runs it, which one, what that says about its devices, and how a
// person would type the command.
package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Python is the interpreter that torchrun would use: PYTHON_EXEC, else the Python of the PATH.
func Python() string {
	if p := os.Getenv("PYTHON_EXEC"); p != "" {
		return p
	}
	for _, name := range []string{"python3", "python"} {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			//nolint:gosec // the user's own PATH
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
				return name
			}
		}
	}
	return "python3"
}

// ForPython reports whether Python runs a program: by its name, then by the file, which a relative name finds from dir. Python also
// runs folders and archives.
func ForPython(dir, program string) bool {
	if strings.HasSuffix(program, ".py") {
		return true
	}
	info, err := os.Stat(in(dir, program))
	switch {
	case err != nil:
		return false
	case info.IsDir():
		return strings.Contains(program, "/") // else it is a program that has the name of a folder
	}
	return info.Mode().IsRegular() && info.Mode()&0o111 == 0
}

// Find returns the file of a program that is executed, as a shell in the folder dir and with this PATH would find it.
func Find(name, path, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	denied := false
	for folder := range strings.SplitSeq(path, ":") {
		if folder == "" {
			folder = "."
		}
		file := folder + "/" + name
		info, err := os.Stat(in(dir, file))
		if err != nil || info.IsDir() {
			continue
		}
		if info.Mode()&0o111 == 0 {
			denied = true
			continue
		}
		return file, nil
	}
	if denied {
		return "", fmt.Errorf("%s: it is in the PATH, but not executable", name)
	}
	return "", fmt.Errorf("%s: not found in the PATH", name)
}

// in returns the path of a file that is named from a folder.
func in(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// Missing says that a program does not exist: with python the file of a script, else what is executed. It is nil where that cannot be
// told.
func Missing(name, path, dir string, python bool) error {
	file := name
	if !python {
		found, err := Find(name, path, dir)
		if err != nil {
			if _, here := os.Stat(in(dir, name)); here == nil {
				return fmt.Errorf("%w; ./%s is in this folder", err, name)
			}
			return err
		}
		file = found
	}
	if _, err := os.Stat(in(dir, file)); errors.Is(err, fs.ErrNotExist) {
		if dir == "" {
			dir, _ = os.Getwd()
		}
		if filepath.IsAbs(file) {
			return fmt.Errorf("%s: no such file", name)
		}
		return fmt.Errorf("%s: no such file in %s", name, dir)
	}
	return nil
}

// askTime bounds the wait for the answer of Python, which has to load PyTorch: seconds, or a minute from a slow disk.
const askTime = 5 * time.Minute

// question asks for torchrun's own answer, and marks it among what a library may print.
const question = `
import sys
from torch.distributed.run import determine_local_world_size
print("cohort devices", determine_local_world_size(sys.argv[1]))`

// Devices asks PyTorch how many devices of a kind there are, as torchrun's --nproc-per-node does.
func Devices(ctx context.Context, python, kind string) (int, error) {
	if python == "" {
		python = Python()
	}
	limited, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(limited, python, "-c", question, kind) //nolint:gosec // the user's own interpreter
	cmd.WaitDelay = time.Second
	var out, problems end
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if ctx.Err() != nil {
		return 0, fmt.Errorf("%s did not answer how many there are: %w", python, context.Cause(ctx))
	}
	if limited.Err() != nil {
		return 0, fmt.Errorf("%s did not answer within %v", python, askTime)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(problems)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			err = errors.New(last)
		}
		return 0, fmt.Errorf("%s cannot tell how many such devices there are: %w", python, err)
	}
	_, after, _ := strings.Cut(string(out), "cohort devices ")
	number, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s answered that there are %q such devices", python, number)
	}
	return n, nil
}

// endSize is how much of what Python prints is kept: the answer and the reason of a failure come last.
const endSize = 64 << 10

// end keeps the last bytes that are written to it.
type end []byte

func (e *end) Write(b []byte) (int, error) {
	*e = append(*e, b...)
	*e = slices.Delete(*e, 0, max(0, len(*e)-endSize))
	return len(b), nil
}

// word is one that a shell takes as it is.
var word = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// Quoted writes a command as one would type it.
func Quoted(command []string) string {
	words := make([]string, len(command))
	for i, w := range command {
		if words[i] = w; !word.MatchString(w) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
