"""Databases on real machines, with real clients: psycopg and a SQLAlchemy application."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from torpor import Database, Templates, Volume
from torpor.base.home import Home
from torpor.model_databases import DatabaseState

D = DatabaseState


@pytest.fixture(scope="module")
def postgres(vm_home: Home) -> Iterator[str]:
    """The template of databases, built from nothing unless the home has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        yield Templates.build("postgres").name


@pytest.fixture(scope="module")
def db(postgres: str, vm_home: Home) -> Iterator[Database]:
    """One database for the tests that leave no mark on each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORPOR_HOME", str(vm_home.root))
        steps: list[str] = []
        made = Database.create("shop", size="1g", progress=lambda s: steps.append(s.step))
        assert steps[-1] == "connection"
        yield made
        for found in Database.list():
            found.delete()
        assert not [v.name for v in Volume.list() if v.name.startswith("db-")]


def query(url: str, statement: str, *args: object) -> list[tuple[object, ...]]:
    """Run a statement, as often as a client tries that is cut off by a machine that goes down."""
    with psycopg.connect(url, connect_timeout=120) as connection:
        found = connection.execute(statement, args or None)  # type: ignore[arg-type]
        return found.fetchall() if found.description else []


class Base(DeclarativeBase):
    """The application's tables."""


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    orders: Mapped[list[Order]] = relationship(back_populates="customer")


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(sa.ForeignKey("customer.id"))
    total: Mapped[int]
    customer: Mapped[Customer] = relationship(back_populates="orders")


def test_an_application_uses_it(db: Database, vm_home: Home) -> None:
    engine = sa.create_engine(db.connection_url.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        ada = Customer(name="Ada", orders=[Order(total=3), Order(total=4)])
        session.add_all([ada, Customer(name="Grace")])
        session.commit()
        session.add(Customer(name="Ada"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        total = sa.select(sa.func.sum(Order.total)).join(Customer).where(Customer.name == "Ada")
        assert session.scalar(total) == 7
    engine.dispose()
    payload = bytes(range(256)) * 4096  # a MiB with every byte, both ways
    assert query(db.connection_url, "SELECT %s::bytea", payload) == [(payload,)]

    assert db.refresh().state is D.RUNNING
    assert db.info.server_version is not None
    assert db.info.server_version.startswith("17.")
    ((buffers,), *_) = query(
        db.connection_url, "SELECT pg_size_bytes(current_setting('shared_buffers'))"
    )
    assert 0.2 < int(str(buffers)) / (db.info.ram_mib << 20) < 0.3, (
        "it follows the machine's memory"
    )
    password = db.connection_url.partition("@")[0].rpartition(":")[2]
    kept = vm_home.databases / f"{db.id}.password"
    assert kept.read_text().strip() == password
    assert kept.stat().st_mode & 0o777 == 0o600
    for path in (vm_home.database, vm_home.daemon_log, vm_home.access_log):
        assert password.encode() not in path.read_bytes(), path
    for manifest in vm_home.snapshots.glob("*/manifest.json"):
        assert password.encode() not in manifest.read_bytes()
