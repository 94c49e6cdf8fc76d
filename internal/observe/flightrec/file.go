// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

// Save puts the dump of a group's rank of this process into a folder, and logs that.
func Save(logger *slog.Logger, dir, reason, group string, globalRank int, data []byte) {
	name, err := writeFile(dir, group, globalRank, data)
	if err != nil {
		logger.Warn("the flight recorder's dump could not be written", slog.String("group", group), slog.Any("error", err))
		return
	}
	logger.Info("flight recorder dumped", slog.String("group", group), slog.String("reason", reason), slog.String("file", name))
}

// writeFile returns the name of the file. It replaces the file as a whole, so that a reader never sees half of it.
func writeFile(dir, group string, globalRank int, data []byte) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // for every user who looks for the reason
		return "", err
	}
	name := filepath.Join(dir, fmt.Sprintf("group-%s.rank%d.%d.json", fileName(group), globalRank, os.Getpid()))
	partial, err := os.CreateTemp(dir, ".dump*")
	if err != nil {
		return "", err
	}
	_, err = partial.Write(data)
	if e := partial.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(partial.Name(), name)
	}
	if err != nil {
		_ = os.Remove(partial.Name())
	}
	return name, err
}

// OnSignals begins to catch signals. The function that it returns calls f for each, until ctx ends.
func OnSignals(ctx context.Context, signals []os.Signal, f func()) (run func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, signals...)
	return func() {
		defer signal.Stop(caught)
		for {
			select {
			case <-caught:
				f()
			case <-ctx.Done():
				return
			}
		}
	}
}

// fileName keeps what is harmless in the name of a file.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}
