// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// schemaName is the value of the field "schema" of a form: "cohort.store.get.v1" for "store.get". Its schema is the file of that name
// in package schema.
func schemaName(form string) string { return "cohort." + form + ".v1" }

// WriteJSON writes v, which is an object in JSON, as one line. Its first field says of which form it is.
func WriteJSON(w io.Writer, form string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	text = printable.Document(text)
	line := []byte(`{"schema":` + strconv.Quote(schemaName(form)))
	if rest := bytes.TrimPrefix(text, []byte("{")); !bytes.Equal(rest, []byte("}")) {
		line = append(append(line, ','), rest...)
	} else {
		line = append(line, '}')
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// LogHandler writes the lines of a log: as text, or as objects of the form "log".
func (a *App) LogHandler(level slog.Level) slog.Handler {
	if !a.JSON {
		return slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level})
	}
	handler := slog.NewJSONHandler(a.Err, &slog.HandlerOptions{Level: level, ReplaceAttr: plainAttr})
	return handler.WithAttrs([]slog.Attr{slog.String("schema", schemaName("log"))})
}

// plainAttr gives the fields of a log the names of all other JSON: a duration is a number of seconds and says so, times are in UTC.
func plainAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch a.Key {
		case slog.TimeKey:
			return slog.Time("at", a.Value.Time().UTC())
		case slog.LevelKey:
			return slog.String("level", strings.ToLower(a.Value.String()))
		case slog.MessageKey:
			return slog.String("text", a.Value.String())
		}
	}
	a.Key = strings.ReplaceAll(strings.ToLower(a.Key), " ", "_")
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.Float64(a.Key+"_s", a.Value.Duration().Round(time.Microsecond).Seconds())
	case slog.KindTime:
		return slog.Time(a.Key+"_at", a.Value.Time().UTC())
	default:
		return a
	}
}
