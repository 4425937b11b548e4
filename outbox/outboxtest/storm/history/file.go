package history

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
)

// Save writes a history to a file, compressed.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b := bufio.NewWriter(f)
	z := gzip.NewWriter(b)
	if err := h.encode(z); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// encode writes a history as one JSON object, list by list and element by element: as a whole its text would take more
// memory than the run did.
func (h *History) encode(w io.Writer) error {
	lists := reflect.ValueOf(h).Elem()
	for i := range lists.NumField() {
		name := lists.Type().Field(i).Name
		if _, err := fmt.Fprintf(w, "%s%q:", separator(i, "{"), name); err != nil {
			return err
		}
		if err := encodeField(w, lists.Field(i)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := io.WriteString(w, "}\n")
	return err
}

func encodeField(w io.Writer, v reflect.Value) error {
	e := json.NewEncoder(w)
	if v.Kind() != reflect.Slice || v.Len() == 0 {
		return e.Encode(v.Interface())
	}
	for i := range v.Len() {
		if _, err := io.WriteString(w, separator(i, "[")); err != nil {
			return err
		}
		if err := e.Encode(v.Index(i).Interface()); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "]")
	return err
}

// separator is what stands before element i.
func separator(i int, opening string) string {
	if i == 0 {
		return opening
	}
	return ","
}

// Load reads what Save has written.
func Load(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	defer z.Close()
	var h History
	if err := json.NewDecoder(z).Decode(&h); err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	return &h, nil
}
