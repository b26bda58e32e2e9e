"""A user's own stream: tables and folders of photos, in their own order, labelled or not."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from PIL import ExifTags, Image

from tta_bench.datasets.classification.manifest import manifest
from tta_bench.datasets.files.photo_times import exif_time, natural_key


def photo(path, level, taken=None, fraction=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken:
        own = exif.get_ifd(ExifTags.IFD.Exif)
        own[ExifTags.Base.DateTimeOriginal] = taken
        if fraction:
            own[ExifTags.Base.SubsecTimeOriginal] = fraction
    Image.new("RGB", (8, 8), (level,) * 3).save(path, exif=exif, quality=100)


@pytest.fixture
def photos(tmp_path):
    for k in range(6):
        photo(tmp_path / "img" / f"{k}.png", 10 * k)
    return tmp_path


def table(folder, *lines, name="photos.csv", encoding="utf-8", ends="\n"):
    (folder / name).write_bytes((ends.join(lines) + ends).encode(encoding))
    return folder / name


def opened(file=None, **settings):
    given = {"file": str(file)} if file else {}
    return manifest(**given, **{"image_size": None, "resize": None, **settings})


def shown(data):
    """(Domain, level of the image, label) in the order of arrival."""
    ids, rows, _ = data.arrival_order()
    names = [data.domains[i] for i in ids]
    return [
        (name, int(data.load(name, r)[0, 0, 0]), int(data.labels(name)[r])) for name, r in zip(names, rows, strict=True)
    ]


class TestTables:
    def test_images_arrive_in_the_order_of_the_rows_whatever_their_domain(self, photos):
        file = table(photos, "path,label,domain", "img/4.png,1,b", "img/0.png,,a", "img/2.png,0,b", "img/1.png,3,")
        data = opened(file)
        assert shown(data) == [("b", 40, 1), ("a", 0, -1), ("b", 20, 0), ("others", 10, 3)]
        assert data.domains == ("b", "a", "others")
        assert data.describe()["labelled"] == 3

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    @pytest.mark.parametrize("ends", ["\n", "\r\n"])
    def test_any_delimiter_mark_and_line_end(self, photos, delimiter, encoding, ends):
        lines = [line.replace(",", delimiter) for line in ("Label, Path ", "2,img/3.png", '1,"img/5.png"', "")]
        assert shown(opened(table(photos, *lines, encoding=encoding, ends=ends))) == [("all", 30, 2), ("all", 50, 1)]

    def test_a_table_of_paths_alone_is_one_domain_without_labels(self, photos):
        assert shown(opened(table(photos, "path", "img/3.png", "img/1.png"))) == [("all", 30, -1), ("all", 10, -1)]

    def test_an_image_may_arrive_again(self, photos):
        assert shown(opened(table(photos, "path,label", "img/1.png,0", "img/1.png,0"))) == [("all", 10, 0)] * 2

    def test_labels_as_pandas_writes_them_beside_missing_ones(self, photos):
        file = table(photos, "path,label", "img/0.png,3.0", "img/1.png,nan", "img/2.png,NA")
        assert opened(file).labels("all").tolist() == [3, -1, -1]

    def test_names_take_their_class_from_the_list_and_may_read_as_missing_words(self, photos):
        (photos / "classes.txt").write_text("none\ndog\nna\n")
        file = table(photos, "path,label", "img/0.png,dog", "img/1.png,", "img/2.png,na", "img/3.png,none")
        assert opened(file, classes=str(photos / "classes.txt")).labels("all").tolist() == [1, -1, 2, 0]

    def test_a_sample_is_spread_over_the_stream(self, photos):
        file = table(photos, "path,domain", *(f"img/{k}.png,{'ab'[k % 2]}" for k in range(6)))
        assert [(d, level) for d, level, _ in shown(opened(file, num_images=3))] == [("a", 0), ("a", 20), ("a", 40)]

    def test_damaged_images_are_left_out_on_request(self, photos):
        (photos / "img" / "1.png").write_bytes(b"<html>")
        data = opened(table(photos, "path,label", "img/0.png,0", "img/1.png,1", "img/2.png,2"), on_bad_image="skip")
        assert shown(data) == [("all", 0, 0), ("all", 20, 2)]
        assert data.describe()["skipped_images"] == {"number": 1, "first": ["img/1.png"]}
        assert data.describe()["labelled"] == 2

    def test_groups_stay_with_their_images(self, photos):
        file = table(photos, "path,domain,group", "img/0.png,a,x", "img/1.png,b,", "img/2.png,a,y")
        data = opened(file)
        assert [data.group(d, i) for d, i in (("a", 0), ("a", 1), ("b", 0))] == ["x", "y", None]
        (photos / "img" / "0.png").write_bytes(b"<html>")
        assert opened(file, on_bad_image="skip").group("a", 0) == "y"

    def test_times_stay_with_their_images(self, photos):
        file = table(photos, "path,time", "img/0.png,0", "img/1.png,60", "img/2.png,", "img/3.png,180")
        (photos / "img" / "0.png").write_bytes(b"<html>")
        _, _, times = opened(file, on_bad_image="skip").arrival_order()
        assert times == pytest.approx([60, np.nan, 180], nan_ok=True)

    def test_parquet(self, photos):
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        times = np.array(["2024-05-31T23:00:00.000000001", "2024-06-01T00:00"], dtype="datetime64[ns]")
        columns = {"path": ["img/5.png", "img/0.png"], "label": [None, 2], "time": times, "domain": ["a", None]}
        parquet.write_table(arrow.table(columns), photos / "p.parquet")
        data = opened(photos / "p.parquet", domain_from="month")
        assert shown(data) == [("2024-05", 50, -1), ("2024-06", 0, 2)]
        assert np.diff(data.arrival_order()[2]).tolist() == [3600]
        (photos / "p.parquet").write_bytes(b"path,label")
        with pytest.raises(ValueError, match=r"p\.parquet is not a readable Parquet file"):
            opened(photos / "p.parquet")


class TestWrongTables:
    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (["path,lable", "img/0.png,0"], "has a column 'lable': rename it to 'label'"),
            (["file,label", "img/0.png,0"], r"has no column 'path' in its first line, which is 'file,label'"),
            (["path,label", "img/0.png,cat"], r"line 2: the label 'cat' is not a class number .* dataset\.classes"),
            (["path,label", "img/0.png,-1"], "line 2: the label '-1' is not a class number .*: leave it empty"),
            (["path,label", "img/0.png,1.5"], "the label '1.5' is not a class number"),
            (["path,label", "img/0.png,0", "img/1.png"], "line 3: 1 values, and the header has 2 columns"),
            (["path,time", "img/0.png,31.05.2024"], "line 2: '31.05.2024' is not a time: write 2024-05-31 14:03:00"),
            (["path,time", "img/0.png,2024-01-01", "img/1.png,2024-01-01T00:00Z"], "some times have a zone"),
            (["path,time", "img/0.png,1717156800000"], "is not a time: .* seconds since 1970"),
            (["path,label", ",0"], "line 2: there is no path"),
            (["path,label", "img/0.png,1", "img/0.png,2"], r"line 3: img/0\.png has the label 2, but 1 in line 2"),
            (["path,domain", "img/0.png,a=b"], "line 2: a domain cannot be called 'a=b'"),
            (["path"], "has a header but no rows"),
            (["path,label,Label", "img/0.png,0,1"], "has two columns 'label'"),
            ([""], "is empty: its first line names the columns"),
        ],
    )
    def test_each_is_one_sentence_with_the_place(self, photos, lines, message):
        with pytest.raises(ValueError, match=message):
            opened(table(photos, *lines))

    def test_a_missing_image_is_named_with_its_line(self, photos):
        with pytest.raises(FileNotFoundError, match=r"line 3: there is no image img/7\.png .*, and 1 more are missing"):
            opened(table(photos, "path", "img/0.png", "img/7.png", "img/8.png"))

    def test_a_label_that_is_no_class_of_the_list(self, photos):
        (photos / "classes.txt").write_text("cat\ndog\n")
        with pytest.raises(ValueError, match=r"line 2: the label 'dgo' is not a class .*; did you mean 'dog'"):
            opened(table(photos, "path,label", "img/0.png,dgo"), classes=str(photos / "classes.txt"))

    def test_a_table_or_a_folder_but_not_both(self, photos):
        for settings in ({}, {"file": ""}, {"file": "x.csv", "images": str(photos)}):
            with pytest.raises(ValueError, match=r"give dataset\.file=photos\.csv"):
                manifest(**settings)
        with pytest.raises(ValueError, match=r"is a folder: write dataset\.images="):
            opened(photos)


class TestDomainsFrom:
    TIMES = ("2024-05-31 23:50", "2024-06-01 00:10", "2024-06-03 00:00")

    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            ("day", ["2024-05-31", "2024-06-01", "2024-06-03"]),
            ("week", ["2024-W22", "2024-W22", "2024-W23"]),
            ("month", ["2024-05", "2024-06", "2024-06"]),
        ],
    )
    def test_the_time_as_it_is_written(self, photos, kind, names):
        file = table(photos, "path,time,domain", *(f"img/{k}.png,{time},x" for k, time in enumerate(self.TIMES)))
        assert [d for d, _, _ in shown(opened(file, domain_from=kind))] == names

    def test_the_folder(self, photos):
        photo(photos / "cam" / "9.png", 90)
        file = table(photos, "path", "img/0.png", "cam/9.png", "img/1.png")
        assert [d for d, _, _ in shown(opened(file, domain_from="folder"))] == ["img", "cam", "img"]

    def test_without_a_column_the_camera_tells_the_time(self, tmp_path):
        photo(tmp_path / "a.jpg", 1, "2024:05:31 10:00:00")
        assert opened(table(tmp_path, "path", "a.jpg"), domain_from="day").domains == ("2024-05-31",)

    def test_a_missing_time_is_named(self, photos):
        with pytest.raises(ValueError, match=r"domain_from=day needs the time of every image, and img/1\.png has none"):
            opened(table(photos, "path,time", "img/0.png,2024-01-01", "img/1.png,"), domain_from="day")


class TestFolders:
    def test_photos_arrive_by_exif_time_to_the_fraction_of_a_second(self, tmp_path):
        photo(tmp_path / "a.jpg", 30, "2024:05:31 10:00:01", "5")
        photo(tmp_path / "b.jpg", 20, "2024:05:31 10:00:01", "25")
        photo(tmp_path / "inner" / "c.jpg", 10, "2024:05:31 10:00:00")
        data = opened(images=str(tmp_path))
        assert [level for _, level, _ in shown(data)] == [10, 20, 30]
        assert data.describe()["order_of_images"] == "EXIF times"
        assert np.diff(data.arrival_order()[2]) == pytest.approx([1.25, 0.25])
        assert opened(images=str(tmp_path), domain_from="folder").domains == ("inner", "all")

    def test_otherwise_by_name_with_numbers_by_value_and_this_is_said(self, tmp_path):
        for name, level in (("img10.jpg", 10), ("img9.jpg", 9), ("IMG11.jpg", 11)):
            photo(tmp_path / name, level, "2024:05:31 10:00:00" if level == 10 else None)
        (tmp_path / "movie.mp4").write_bytes(b"")
        data = opened(images=str(tmp_path))
        assert [level for _, level, _ in shown(data)] == [9, 10, 11]
        assert "2 of 3 lack one" in data.describe()["order_of_images"]
        assert data.describe()["left_out"] == {".mp4": 1}

    def test_a_camera_without_a_clock_tells_no_time(self, tmp_path):
        photo(tmp_path / "a.jpg", 1, "0000:00:00 00:00:00")
        assert exif_time(tmp_path / "a.jpg") is None

    def test_natural_order_compares_names_of_any_kind(self):
        names = ["b", "1", "a2b", "a10", "a2"]
        assert sorted(names, key=natural_key) == ["1", "a2", "a2b", "a10", "b"]

    def test_a_folder_without_images(self, tmp_path):
        with pytest.raises(ValueError, match="holds no images that are read"):
            opened(images=str(tmp_path))


class TestSource:
    def test_class_folders_are_named_as_the_labels(self, photos):
        (photos / "classes.txt").write_text("cat\ndog\n")
        photo(photos / "source" / "dog" / "0.png", 5)
        file = table(photos, "path", "img/0.png")
        data = opened(file, source_images=str(photos / "source"), classes=str(photos / "classes.txt"))
        assert data.source_images().labels.tolist() == [1]
        with pytest.raises(ValueError, match="has a folder 'dog', which is not a class number"):
            opened(file, source_images=str(photos / "source"))

    def test_a_flat_folder_has_no_labels(self, photos):
        data = opened(table(photos, "path", "img/0.png"), source_images=str(photos / "img"))
        assert data.source_images().labels.tolist() == [-1] * 6


def test_times_in_a_zone_are_compared_as_instants(photos):
    zones = ("2024-05-31T12:00:00+02:00", "2024-05-31T10:30:00Z")
    file = table(photos, "path,time", *(f"img/{k}.png,{time}" for k, time in enumerate(zones)))
    assert np.diff(opened(file).arrival_order()[2]).tolist() == [timedelta(minutes=30).total_seconds()]
